"""δ of PipeMare: where a stage's weights are drifting, as a running average of what each update changes."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class UpdateAverage:
    """δ, kept for each weight: after an update δ <- γδ + (1 - γ)(W_new - W_old) (PipeMare § 3.2).

    Attributes:
        decay: γ.
        average: weight name -> δ, shaped as the weight.
    """

    decay: float
    average: dict[str, Tensor]

    @classmethod
    def from_zero(cls, decay: float, weights: Mapping[str, Tensor]) -> "UpdateAverage":
        """No update seen yet."""
        return cls(decay, {name: torch.zeros_like(weight) for name, weight in weights.items()})

    def before(self, weights: Mapping[str, Tensor], *, stays: bool) -> dict[str, Tensor]:
        """W_old of an update about to happen: copies, unless these very tensors stay as they are."""
        return {name: weights[name] if stays else weights[name].clone() for name in self.average}

    def follow(self, before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> None:
        """After an update."""
        for name, average in self.average.items():
            average.mul_(self.decay).add_(after[name] - before[name], alpha=1 - self.decay)
