"""Data sets whose samples differ in shape."""

from types import SimpleNamespace

import torch
from torch import Tensor, nn


class Images:
    """Square images of 6 to 8 pixels."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def side(self, index: int) -> int:
        return 6 + index % 3

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        generator = torch.Generator().manual_seed(index)
        return torch.rand(1, self.side(index), self.side(index), generator=generator), index % 2


class GroupedBySize(Images):
    """The same; images of one size share a minibatch."""

    def batches(self, batch_size: int, samples: int) -> list[list[int]]:
        sides = [[i for i in range(samples) if self.side(i) == side] for side in (6, 7, 8)]
        return [same[k : k + batch_size] for same in sides for k in range(0, len(same), batch_size)]


def chain() -> nn.Sequential:
    """Classifies images of any size."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))


def data(kind: type[Images]) -> SimpleNamespace:
    return SimpleNamespace(train=kind(9), eval=kind(7))
