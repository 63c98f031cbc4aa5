"""torchvision's GoogLeNet and Inception-V3 as layer chains, under its names and with its initial weights."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from typing_extensions import override

from pipetrain.engine.models.chain import LayerChain
from pipetrain.engine.tensors import Tensors
from pipetrain.zoo.models.image_layers import Relay, Wrapper, with_enlargement
from pipetrain.zoo.models.torchvision_models import with_channels
from pipetrain.zoo.torchvision_shim import models

_AUXILIARY, _LAST = ("aux1", "aux2", "AuxLogits"), ("avgpool", "dropout", "fc")
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
    """The last layer: the model's own scores first, then the heads' scores, the last head's first, as torchvision's."""

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
    return _chain(model, heads, _LEAST)


def inception_v3(channels: int, classes: int, *, auxiliary: bool = False) -> LayerChain:
    """torchvision's Inception-V3 (Szegedy et al. 2016); every inception block is a layer.

    Images below 75 x 75, or 299 x 299 if `auxiliary`, are enlarged to that. A further head, after block 6e, then gives
    scores in training, which `CrossEntropy` weighs.
    """
    model = models.inception_v3(weights=None, num_classes=classes, aux_logits=auxiliary, init_weights=True)
    _rechannel(model.Conv2d_1a_3x3, channels, std=0.1)
    heads = {"Mixed_6e": model.AuxLogits} if auxiliary else {}
    return _chain(model, heads, _LEAST_OF_V3_WITH_HEAD if auxiliary else _LEAST_OF_V3)


def _rechannel(block: Any, channels: int, std: float) -> None:
    """Gives a model that is not for color images another first convolution, as torchvision initializes its own."""
    if channels != block.conv.in_channels:
        block.conv = with_channels(block.conv, channels)
        nn.init.trunc_normal_(block.conv.weight, std=std, a=-2, b=2)


def _chain(model: Any, heads: Mapping[str, nn.Module], least: int) -> LayerChain:
    """The chain of a model whose forward calls its children in their order."""
    layers: list[nn.Module] = []
    for name, body in model.named_children():
        if name in heads:
            layers.append(Branching(body, heads[name]))
        elif name not in (*_AUXILIARY, *_LAST):
            layers.append(Relay(body) if heads else body)
    layers[0] = with_enlargement(model, layers[0], least)
    scores = nn.Sequential(model.avgpool, nn.Flatten(), model.dropout, model.fc)
    return LayerChain(model, [*layers, Scores(scores) if heads else scores])
