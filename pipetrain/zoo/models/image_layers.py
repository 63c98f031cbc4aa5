"""Layers that image models share: features and a classifier, enlarged images, residual blocks."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from pipetrain.engine.models.chain import LayerChain
from pipetrain.engine.tensors import Tensors

_FOLLOWING = (nn.BatchNorm2d, nn.ReLU, nn.Dropout)
"""Modules that join the layer of the convolution before them."""


class FeaturesClassifier(nn.Module):
    """A model as torchvision has AlexNet and VGG, under the same names; features are averaged to (side, side).

    Papers count memory by module, so flattening is a function here, as in torchvision.
    """

    def __init__(self, features: Sequence[nn.Module], side: int, classifier: nn.Sequential) -> None:
        super().__init__()
        self.features = nn.Sequential(*features)
        self.avgpool = nn.AdaptiveAvgPool2d(side)
        self.classifier = classifier

    @override
    def forward(self, x: Tensor) -> Tensor:
        x = self.avgpool(self.features(x))
        return self.classifier(x.flatten(1))  # type: ignore[no-any-return]


def classifier_of(inputs: int, hidden: int, classes: int, dropout: float) -> nn.Sequential:
    """Three linear layers, with dropout before the first two: 7 modules."""
    return nn.Sequential(
        nn.Dropout(dropout), nn.Linear(inputs, hidden), nn.ReLU(),
        nn.Dropout(dropout), nn.Linear(hidden, hidden), nn.ReLU(),
        nn.Linear(hidden, classes),
    )  # fmt: skip


def out_of_place(model: nn.Module) -> None:
    """Switches every activation of `model` that works in place to its out-of-place form."""
    for part in model.modules():
        if getattr(part, "inplace", None) is True:
            part.inplace = False  # type: ignore[assignment]


def chain_of_features(model: Any, least: int) -> LayerChain:
    """The chain of a `FeaturesClassifier`, or torchvision's; images with a side below `least` are enlarged."""
    out_of_place(model)
    groups: list[list[nn.Module]] = []
    for part in model.features:
        if isinstance(part, _FOLLOWING):
            groups[-1].append(part)
        else:
            groups.append([part])
    layers = [group[0] if len(group) == 1 else nn.Sequential(*group) for group in groups]
    layers[0] = with_enlargement(model, layers[0], least)
    layers.append(nn.Sequential(model.avgpool, nn.Flatten()))
    layers += [model.classifier[:3], model.classifier[3:6], model.classifier[6]]
    return LayerChain(model, layers)


class Enlarge(nn.Module):
    """Scales an image up, bilinearly and keeping its shape, until its smaller side is `least` pixels."""

    def __init__(self, least: int) -> None:
        super().__init__()
        self.least = least

    @override
    def forward(self, x: Tensor) -> Tensor:
        sides = x.shape[-2:]
        if min(sides) >= self.least:
            return x
        size = [round(side * self.least / min(sides)) for side in sides]
        return F.interpolate(x, size=size, mode="bilinear", align_corners=False)

    def before(self, _module: nn.Module, inputs: tuple[Tensor]) -> Tensor:
        """Does the same as a forward pre-hook of the whole model, so that it and its chain agree."""
        return self.forward(*inputs)


def with_enlargement(model: nn.Module, first: nn.Module, least: int) -> nn.Module:
    """The first layer of a model's chain, for images of any size; the model enlarges them, too."""
    enlarge = Enlarge(least)
    model.register_forward_pre_hook(enlarge.before)
    return nn.Sequential(enlarge, first)


class Wrapper(nn.Module):
    """A layer around a module of the model."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body


class Open(Wrapper):
    """The first layer of a block: x to (body(x), x)."""

    @override
    def forward(self, x: Tensor) -> Tensors:
        return self.body(x), x


class Relay(Wrapper):
    """A layer that passes later tensors on, such as a block's input: (x, *others) to (body(x), *others)."""

    @override
    def forward(self, x: Tensor, *others: Tensor) -> Tensors:
        return self.body(x), *others


class Close(Wrapper):
    """The last layer of a block: (y, skip) to relu(body(y) + shortcut(skip))."""

    def __init__(self, body: nn.Module, shortcut: nn.Module) -> None:
        super().__init__(body)
        self.shortcut = shortcut

    @override
    def forward(self, y: Tensor, skip: Tensor) -> Tensor:
        return F.relu(self.body(y) + self.shortcut(skip))


def block_layers(units: Sequence[tuple[nn.Module, nn.Module]], shortcut: nn.Module | None) -> list[nn.Module]:
    """The layers of one block: a (convolution, norm) pair each, the shortcut in the last; at least two pairs."""
    *before, (conv, norm) = units
    bodies = [nn.Sequential(*unit, nn.ReLU()) for unit in before]
    close = Close(nn.Sequential(conv, norm), nn.Identity() if shortcut is None else shortcut)
    return [Open(bodies[0]), *map(Relay, bodies[1:]), close]
