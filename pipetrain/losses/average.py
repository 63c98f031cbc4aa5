"""Averages over the microbatches of a minibatch, weighted by what the loss counts."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


def share(counts: Sequence[int], j: int) -> float:
    """n_j / n: the weight of microbatch j; 0 where none counts anything, such as padding alone."""
    return counts[j] / max(1, sum(counts))


@dataclass(frozen=True)
class StepLoss:
    """The loss of a step.

    Attributes:
        mean: over what it counts, a float32 scalar.
        count: samples, or target tokens.
    """

    mean: Tensor
    count: int


def step_loss(losses: Sequence[Tensor], counts: Sequence[int]) -> StepLoss:
    """Σ_j (n_j / n) · loss_j in float32, j ascending: the loss of a minibatch from those of its microbatches."""
    value = torch.zeros((), dtype=torch.float32, device=losses[0].device)
    for j, loss in enumerate(losses):
        value = value + loss.float() * share(counts, j)
    return StepLoss(value, sum(counts))


def percent(hits: float, count: int) -> float:
    """Hits among `count`, in percent."""
    return 100.0 * hits / count
