"""Gradients averaged over the replicas of a stage, always summed in the same order."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from typing_extensions import override

from pipetrain.engine.losses import StepLoss
from pipetrain.engine.schedules import Replicas
from pipetrain.engine.tensors import as_real


@dataclass(frozen=True)
class Round:
    """The minibatches of one update of a stage, one on each of its first replicas.

    Attributes:
        first: counted from the last drain.
        count: number of minibatches; less than R if a drain cut the round short.
    """

    first: int
    count: int

    @classmethod
    def ending(cls, replicas: Replicas, stage: int, last: int) -> "Round":
        """Round of a stage whose last minibatch is `last`."""
        first = replicas.round_of(stage, last) * replicas.counts[stage]
        return cls(first, last + 1 - first)

    def own(self, replica: int) -> int | None:
        """Minibatch of a replica; None if it has none."""
        return self.first + replica if replica < self.count else None


@dataclass(frozen=True)
class RoundGradients:
    """Gradients and losses of one replica in a round, or of all replicas together.

    Attributes:
        gradients: name -> sum over the microbatches of a replica, or mean over the minibatches of the round; a weight
            that no minibatch touched has none.
        losses: of the minibatches in order, on the last stage.
    """

    gradients: dict[str, Tensor]
    losses: Sequence[StepLoss] = ()


class Averaging(Protocol):
    """Averages the gradients of a stage over its replicas, a round at a time."""

    def put(self, name: str, gradient: Tensor) -> None:
        """Takes a gradient of the round that ends next, as soon as it is complete; it may not change any more."""

    def offer(self, this: Round, replica: int, part: RoundGradients) -> None:
        """Takes a replica's part, also if it has no minibatch in the round; does not wait."""

    def take(self, this: Round) -> RoundGradients | None:
        """Averages in new memory for each replica, which takes them once.

        In one process None while another replica has yet to offer its part; between processes, waits for it.
        """


def mean_in_first(parts: Sequence[Tensor]) -> Tensor:
    """The mean, in the memory of the first part; summed in their order, so it has the same bits in any buckets."""
    total = parts[0]
    for part in parts[1:]:
        total.add_(part)
    if len(parts) > 1:
        as_real(total).div_(len(parts))
    return total


class InProcessAveraging(Averaging):
    """Averages over R replicas that are all in this process, in the memory order of the weights."""

    def __init__(self, weights: Mapping[str, Tensor], count: int) -> None:
        self._weights = layouts(weights)
        self._offers: dict[int, dict[int, RoundGradients]] = {}
        self._taken: Counter[int] = Counter()
        self._count = count

    @override
    def put(self, name: str, gradient: Tensor) -> None:
        """Does nothing: `offer` passes all gradients together."""

    @override
    def offer(self, this: Round, replica: int, part: RoundGradients) -> None:
        self._offers.setdefault(this.first, {})[replica] = part

    @override
    def take(self, this: Round) -> RoundGradients | None:
        if len(self._offers[this.first]) < self._count:
            return None
        offers = [self._offers[this.first][replica] for replica in range(this.count)]
        gradients = {
            name: mean_in_first(_in_weight_order(offers, name, layout))
            for name, layout in self._weights.items()
            if any(name in offer.gradients for offer in offers)
        }
        self._taken[this.first] += 1
        if self._taken[this.first] == self._count:
            del self._offers[this.first], self._taken[this.first]
        return RoundGradients(gradients, [loss for offer in offers for loss in offer.losses])


def layouts(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors without memory, which keep no version of the weights alive."""
    return {name: torch.empty_like(weight, device="meta") for name, weight in weights.items()}


def _in_weight_order(offers: Sequence[RoundGradients], name: str, layout: Tensor) -> list[Tensor]:
    """Gradients of a weight in its memory order; zeros for a replica without one."""
    given = next(offer.gradients[name] for offer in offers if name in offer.gradients)
    parts = [torch.zeros_like(layout, device=given.device) for _ in offers]
    for part, offer in zip(parts, offers, strict=True):
        if name in offer.gradients:
            part.copy_(offer.gradients[name])
    return parts
