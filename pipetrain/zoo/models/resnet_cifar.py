"""ResNets for small images (He et al. 2016, section 4.2): 6n + 2 layers, parameter-free shortcuts."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from pipetrain.engine.errors import ConfigError, check_whole
from pipetrain.engine.models.chain import LayerChain
from pipetrain.zoo.models.image_layers import block_layers


class Subsample(nn.Module):
    """Option A of the paper: every `stride`-th pixel, and zeros for the channels that the block adds."""

    def __init__(self, stride: int, added: int) -> None:
        super().__init__()
        self.stride = stride
        self.added = added

    @override
    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.added))


def _group_norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(channels // _GROUP if channels % _GROUP == 0 else 1, channels)


_GROUP = 16
"""Channels that a group norm normalizes together (Wu & He 2018, table 3)."""
_NORMS: dict[str, Callable[[int], nn.Module]] = {"batch": nn.BatchNorm2d, "group": _group_norm}


class Block(nn.Module):
    """Two 3 x 3 convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = norm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = norm(outputs)
        self.shortcut = nn.Identity() if inputs == outputs else Subsample(stride, outputs - inputs)

    @override
    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class CifarResNet(nn.Module):
    """The model as plain PyTorch code; papers count its modules, so relu and pooling are functions, as in theirs."""

    def __init__(self, blocks: int, width: int, channels: int, classes: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.bn1 = norm(width)
        self.layer1 = _group(blocks, width, width, norm)
        self.layer2 = _group(blocks, width, 2 * width, norm)
        self.layer3 = _group(blocks, 2 * width, 4 * width, norm)
        self.fc = nn.Linear(4 * width, classes)
        for part in self.modules():
            if isinstance(part, nn.Conv2d):
                nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")

    @override
    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))  # type: ignore[no-any-return]


def build(depth: int, channels: int, classes: int, width: int = 16, norm: str = "batch") -> LayerChain:
    """The ResNet of `depth` weight layers, each of them one layer of the chain; any image size.

    The first group of blocks has `width` channels, 16 in the paper, and each further group twice as many. With
    `norm="group"`, group norms of 16 channels take the place of batch norms, or of all channels if 16 does not divide
    them.

    Raises:
        ConfigError: `depth` is not 6n + 2 for an n of at least 1, `width` is below 1, or there is no such `norm`.
    """
    if depth < 8 or depth % 6 != 2:
        raise ConfigError(f"model.depth={depth}: a CIFAR ResNet has 6n + 2 layers, such as 20, 32, 44, 56 or 110")
    check_whole("model.width", width, least=1)
    if norm not in _NORMS:
        raise ConfigError(f"model.norm={norm}: choose from {', '.join(_NORMS)}")
    model = CifarResNet((depth - 2) // 6, width, channels, classes, _NORMS[norm])
    layers: list[nn.Module] = [nn.Sequential(model.conv1, model.bn1, nn.ReLU())]
    for block in model.modules():
        if isinstance(block, Block):
            layers += block_layers([(block.conv1, block.bn1), (block.conv2, block.bn2)], block.shortcut)
    layers.append(nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), model.fc))
    return LayerChain(model, layers)


def _group(blocks: int, inputs: int, outputs: int, norm: Callable[[int], nn.Module]) -> nn.Sequential:
    first = Block(inputs, outputs, 1 if inputs == outputs else 2, norm)
    return nn.Sequential(first, *(Block(outputs, outputs, 1, norm) for _ in range(blocks - 1)))
