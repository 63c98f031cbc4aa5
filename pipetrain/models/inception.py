"""torchvision's GoogLeNet and Inception-V3 as layer chains, under its names and with its initial weights."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from typing_extensions import override

from pipetrain.libraries.torchvision_shim import models
from pipetrain.models.chain import LayerChain
from pipetrain.models.image_layers import Relay, Wrapper, with_enlargement
from pipetrain.models.torchvision_models import with_channels
from pipetrain.tensors import Tensors

_GOOGLENET = (
    "conv1", "maxpool1", "conv2", "conv3", "maxpool2", "inception3a", "inception3b", "maxpool3", "inception4a",
    "inception4b", "inception4c", "inception4d", "inception4e", "maxpool4", "inception5a", "inception5b",
)  # fmt: skip
_INCEPTION_V3 = (
    "Conv2d_1a_3x3", "Conv2d_2a_3x3", "Conv2d_2b_3x3", "maxpool1", "Conv2d_3b_1x1", "Conv2d_4a_3x3", "maxpool2",
    "Mixed_5b", "Mixed_5c", "Mixed_5d", "Mixed_6a", "Mixed_6b", "Mixed_6c", "Mixed_6d", "Mixed_6e", "Mixed_7a",
    "Mixed_7b", "Mixed_7c",
)  # fmt: skip
_LEAST, _LEAST_OF_V3, _LEAST_OF_V3_WITH_HEAD = 15, 75, 299


class Branching(Wrapper):
    """A layer of the model whose output an auxiliary head scores, in training alone: its scores come last."""

    def __init__(self, body: nn.Module, head: nn.Module) -> None:
        super().__init__(body)
        self.head = head

    @override
    def forward(self, x: Tensor, *scores: Tensor) -> Tensors:
        y = self.body(x)
        return (y, *scores, self.head(y)) if self.training else (y, *scores)


class Scores(Wrapper):
    """The last layer: the model's own scores first, then those of the heads, the last one's first, as torchvision's."""

    @override
    def forward(self, x: Tensor, *scores: Tensor) -> Tensor | Tensors:
        own: Tensor = self.body(x)
        return (own, *reversed(scores)) if scores else own


def googlenet(channels: int, classes: int, *, auxiliary: bool = False) -> LayerChain:
    """torchvision's GoogLeNet (Szegedy et al. 2015), with batch norm; every inception block is a layer.

    Images below 15 x 15 are enlarged to that. If `auxiliary`, two further heads, after blocks 4a and 4d, give scores in
    training, which `CrossEntropy` weighs.
    """
    model = models.googlenet(weights=None, num_classes=classes, aux_logits=auxiliary, init_weights=True)
    _rechannel(model.conv1, channels, std=0.01)
    heads = {"inception4a": model.aux1, "inception4d": model.aux2} if auxiliary else {}
    return _chain(model, _GOOGLENET, heads, _LEAST)


def inception_v3(channels: int, classes: int, *, auxiliary: bool = False) -> LayerChain:
    """torchvision's Inception-V3 (Szegedy et al. 2016); every inception block is a layer.

    Images below 75 x 75, or 299 x 299 if `auxiliary`, are enlarged to that. A further head, after block 6e, then gives
    scores in training, which `CrossEntropy` weighs.
    """
    model = models.inception_v3(weights=None, num_classes=classes, aux_logits=auxiliary, init_weights=True)
    _rechannel(model.Conv2d_1a_3x3, channels, std=0.1)
    heads = {"Mixed_6e": model.AuxLogits} if auxiliary else {}
    return _chain(model, _INCEPTION_V3, heads, _LEAST_OF_V3_WITH_HEAD if auxiliary else _LEAST_OF_V3)


def _rechannel(block: Any, channels: int, std: float) -> None:
    """Gives a model that is not for color images another first convolution, as torchvision initializes its own."""
    if channels != block.conv.in_channels:
        block.conv = with_channels(block.conv, channels)
        nn.init.trunc_normal_(block.conv.weight, std=std, a=-2, b=2)


def _chain(model: Any, names: tuple[str, ...], heads: Mapping[str, nn.Module], least: int) -> LayerChain:
    layers: list[nn.Module] = []
    for name in names:
        body = getattr(model, name)
        relayed = Relay(body) if heads else body
        layers.append(Branching(body, heads[name]) if name in heads else relayed)
    layers[0] = with_enlargement(model, layers[0], least)
    scores = nn.Sequential(model.avgpool, nn.Flatten(), model.dropout, model.fc)
    return LayerChain(model, [*layers, Scores(scores) if heads else scores])
