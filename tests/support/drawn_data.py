"""A data set that draws its images, and must draw one to know its target: both ends of a pipeline read samples."""

from types import SimpleNamespace

import torch
from torch import Tensor


class Drawn:
    """Images of 8 pixels in 4 classes; `broken` is one that cannot be read."""

    def __init__(self, samples: int, broken: int | None = None) -> None:
        self.samples = samples
        self.broken = broken

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if index == self.broken:
            raise OSError("unreadable")
        return torch.rand(1, 8, 8) + index % 4, index % 4


def data(broken: int | None = None) -> SimpleNamespace:
    return SimpleNamespace(train=Drawn(22, broken), eval=Drawn(10), channels=1, classes=4, size=8)
