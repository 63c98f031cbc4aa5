"""The average of a stage's weights over its updates, which evaluations read in place of the weights."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

PASSES = 3
"""Number of times that an update of the average reads or writes each weight or its average."""


class WeightAverage:
    """Exponential moving average: after each update, average <- decay · average + (1 - decay) · W.

    Without a decay, updates leave it alone: at a drain, it becomes the mean over replicas that train alone.

    The first average is a copy of the initial weights, so that there is one after any number of updates. torch's
    `AveragedModel` gives the same values if its `update_parameters` is also called once before the first step.

    Args:
        decay: between 0 and 1, or None.
        weights: name -> weight, floating-point.
    """

    def __init__(self, decay: float | None, weights: Mapping[str, Tensor]) -> None:
        self.tensors = {name: weight.detach().clone() for name, weight in weights.items()}
        """Weight name -> its average."""
        self._follow = None if decay is None else get_ema_multi_avg_fn(decay)

    @property
    def bytes(self) -> int:
        """Bytes of the averages."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def follow(self, weights: Mapping[str, Tensor]) -> None:
        """Takes in the weights after an update."""
        if self.tensors and self._follow is not None:
            self._follow(list(self.tensors.values()), [weights[name] for name in self.tensors], None)

    @torch.no_grad()
    def load(self, averages: Mapping[str, Tensor]) -> None:
        """Restores averages by weight name, which may be on another device."""
        for name, average in self.tensors.items():
            average.copy_(averages[name])
