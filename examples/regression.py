"""A regression of your own on numpy arrays: samples with dicts, an nn.Sequential, and a loss of torch's.

    export PYTHONPATH=examples
    pipetrain run model=custom model._target_=regression.build dataset=custom dataset._target_=regression.data \
                  loss=custom loss._target_=torch.nn.MSELoss optimizer=adam optimizer.lr=0.01 train.epochs=5
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override


class Waves:
    """A split: ({"time": ..., "frequency": ...}, the wave's value), all float32 (1,)."""

    def __init__(self, samples: int, seed: int) -> None:
        self.points = np.random.default_rng(seed).uniform(0, 2, (samples, 2)).astype(np.float32)

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> tuple[dict[str, Any], Any]:
        time, frequency = self.points[index, :1], self.points[index, 1:]
        return {"time": time, "frequency": frequency}, np.sin(3 * time * frequency)


def data(samples: int = 2048) -> SimpleNamespace:
    """The data object."""
    return SimpleNamespace(train=Waves(samples, seed=0), eval=Waves(256, seed=1))


class Joined(nn.Module):
    """The first layer: gets the values of a sample's dict one after the other."""

    @override
    def forward(self, time: Tensor, frequency: Tensor) -> Tensor:
        """(n, 2)."""
        return torch.cat((time, frequency), dim=1)


def build(width: int = 64) -> nn.Sequential:
    """The children are the layers that a partition cuts between."""
    return nn.Sequential(
        Joined(),
        nn.Sequential(nn.Linear(2, width), nn.Tanh()),
        nn.Sequential(nn.Linear(width, width), nn.Tanh()),
        nn.Linear(width, 1),
    )
