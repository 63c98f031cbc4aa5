"""Convolutions and poolings one after the other, then three linear layers: AlexNet, VGG, and their forms for CIFAR."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from typing_extensions import override

from pipetrain.models.chain import LayerChain, out_of_place
from pipetrain.models.enlarge import enlarging

_FOLLOWING = (nn.BatchNorm2d, nn.ReLU, nn.Dropout)
"""What is of the same layer as the convolution before it."""


class FeaturesClassifier(nn.Module):
    """A model as torchvision has AlexNet and VGG, under the same names.

    Args:
        features: convolutions, each with what follows it, and poolings.
        side: height and width that the features are averaged to.
        classifier: as `classifier_of` makes it.
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


def chain_of_features(model: Any, least: int) -> LayerChain:
    """The chain of a model with `features`, `avgpool` and a `classifier` of seven modules.

    Args:
        model: torchvision's, or a `FeaturesClassifier`.
        least: the smaller side that images are enlarged to.
    """
    out_of_place(model)
    groups: list[list[nn.Module]] = []
    for part in model.features:
        if isinstance(part, _FOLLOWING):
            groups[-1].append(part)
        else:
            groups.append([part])
    layers = [group[0] if len(group) == 1 else nn.Sequential(*group) for group in groups]
    layers[0] = enlarging(model, layers[0], least)
    layers.append(nn.Sequential(model.avgpool, nn.Flatten()))
    layers += [model.classifier[:3], model.classifier[3:6], model.classifier[6]]
    return LayerChain(model, layers)
