"""One classifier twice: with complex weights, and with weights that hold their real and imaginary parts."""

import torch
from torch import nn

from pipetrain.engine.models.chain import LayerChain

WIDTH = 3
"""Complex numbers in a layer's inputs and outputs, whose parts are real features side by side."""


class Rotation(nn.Module):
    """A complex matrix product of real features, and a real bias; `split` makes the matrix a real weight."""

    def __init__(self, *, split: bool = False, dtype: torch.dtype = torch.complex128) -> None:
        super().__init__()
        weight = torch.randn(WIDTH, WIDTH, dtype=dtype)
        self.split = split
        self.weight = nn.Parameter(torch.view_as_real(weight) if split else weight)
        self.bias = nn.Parameter(torch.zeros(2 * WIDTH, dtype=dtype.to_real()))

    def forward(self, x):
        weight = torch.view_as_complex(self.weight) if self.split else self.weight
        product = torch.complex(x[:, :WIDTH], x[:, WIDTH:]) @ weight
        return torch.tanh(torch.cat([product.real, product.imag], 1)) + self.bias


def layers(*, split: bool) -> nn.Sequential:
    """Three of them, with the same initial values in both forms."""
    torch.manual_seed(1)
    return nn.Sequential(*[Rotation(split=split) for _ in range(3)])


def build(channels: int, classes: int) -> LayerChain:
    """For pictures of 8 x 8, in seven layers."""
    start = nn.Linear(channels * 64, 2 * WIDTH)
    blocks = [Rotation(dtype=torch.complex64) for _ in range(4)]
    chain = [nn.Flatten(), start, *blocks, nn.Linear(2 * WIDTH, classes)]
    return LayerChain(nn.Sequential(*chain), chain)
