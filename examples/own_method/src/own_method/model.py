"""A model: a small residual network for images."""

import torch
from torch import nn
from typing_extensions import override


class _Residual(nn.Module):
    """A layer: its input plus a convolution of it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(width, width, 3, padding=1)

    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.relu(self.convolution(x))


class OwnModel(nn.Sequential):
    """Images (n, channels, height, width) to scores (n, classes).

    The children of an nn.Sequential are the layers that pipetrain divides among the stages. Any other nn.Module works
    as well: docs/your-own.md of pipetrain. Without settings, `channels` and `classes` are those of the data set.
    """

    def __init__(self, channels: int, classes: int, width: int = 16, depth: int = 4) -> None:
        super().__init__(
            nn.Conv2d(channels, width, 3, stride=2, padding=1),
            nn.ReLU(),
            *(_Residual(width) for _ in range(depth)),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(width, classes),
        )
