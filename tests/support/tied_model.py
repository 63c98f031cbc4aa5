"""A model of seven layers whose second and last share a weight, as an embedding and an output layer do."""

import torch
from torch import nn

from pipetrain.engine.models.chain import LayerChain


class Block(nn.Module):
    """A layer with a weight that some minibatches do not touch."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        return torch.tanh(self.dropout(self.linear(x)))


class Encoder(nn.Module):
    """Pixels as features."""

    def __init__(self, pixels: int, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(pixels, width)

    def forward(self, x):
        return torch.tanh(self.linear(x))


class Decoder(nn.Module):
    """The transposed weight of the encoder, then the classes."""

    def __init__(self, encoder: nn.Linear, classes: int) -> None:
        super().__init__()
        self.weight = encoder.weight
        self.classes = nn.Linear(encoder.in_features, classes)

    def forward(self, x):
        return self.classes(torch.tanh(x @ self.weight))


class Everywhere(nn.Module):
    """A block whose weight all layers share, behind another layer."""

    def __init__(self, before: nn.Module, block: Block) -> None:
        super().__init__()
        self.before, self.block = before, block

    def forward(self, x):
        return self.block(self.before(x))


def build_everywhere(channels: int, classes: int, width: int = 12) -> LayerChain:
    """For pictures of 8 x 8: seven layers that all hold one weight."""
    block = Block(width)
    layers = [Everywhere(nn.Sequential(nn.Flatten(), nn.Linear(channels * 64, width)), block)]
    layers += [Everywhere(nn.LayerNorm(width), block) for _ in range(5)]
    layers.append(Everywhere(nn.Linear(width, width), block))
    module = nn.Sequential(*layers, nn.Linear(width, classes))
    return LayerChain(module, [*layers[:-1], nn.Sequential(layers[-1], module[-1])])


def build(channels: int, classes: int, width: int = 12) -> LayerChain:
    """For pictures of 8 x 8."""
    module = nn.Module()
    module.encoder = Encoder(channels * 64, width)
    module.blocks = nn.ModuleList(Block(width) for _ in range(4))
    module.decoder = Decoder(module.encoder.linear, classes)
    return LayerChain(module, [nn.Flatten(), module.encoder, *module.blocks, module.decoder])
