"""A model of seven layers, two of which checkpoint themselves in two parts that use the same weight."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from pipetrain.engine.models.chain import LayerChain


class Twice(nn.Module):
    """A layer whose backward adds to its weight's gradient twice, as each part runs a backward of its own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        for _ in range(2):
            x = checkpoint(self.part, x, use_reentrant=True) if torch.is_grad_enabled() else self.part(x)
        return x

    def part(self, x):
        return torch.tanh(self.linear(x))


def build(channels: int, classes: int, width: int = 12) -> LayerChain:
    """For pictures of 8 x 8."""
    pixels = nn.Linear(channels * 64, width)
    module = nn.Sequential(
        nn.Flatten(), pixels, Twice(width), nn.Tanh(), Twice(width), nn.Tanh(), nn.Linear(width, classes)
    )
    return LayerChain(module, list(module))
