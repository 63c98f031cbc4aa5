"""Losses of replicas that train alone, reported where and when all of a round have arrived."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from pipetrain.engine.losses import StepLoss
from pipetrain.engine.stage.replica_weights import Exchange, Gathered


@dataclass(frozen=True)
class LossExchange:
    """Passes losses among the replicas of the last stage.

    Attributes:
        means: on the device, where they stay until they are read.
        counts: in host memory.
    """

    means: Exchange
    counts: Exchange


@dataclass
class LateLosses:
    """Losses of a last stage's replicas in the order of the minibatches, reported by the first replica.

    Attributes:
        exchange: of the replicas.
        delay: number of rounds that may pass before a round's losses are awaited.
        device: of the losses.
        on_step: called with each minibatch of the run and its loss; None in other replicas.
    """

    exchange: LossExchange
    delay: int
    device: torch.device
    on_step: Callable[[int, StepLoss], None] | None
    _rounds: deque[tuple[range, Gathered, Gathered]] = field(default_factory=deque)

    def add(self, minibatches: range, own: Sequence[StepLoss]) -> None:
        """Gives this replica's loss of a round, if it has one."""
        loss = own[0] if own else StepLoss(torch.zeros((), device=self.device), 0)
        means = self.exchange.means.begin(loss.mean.double().reshape(1))
        counts = self.exchange.counts.begin(torch.tensor([loss.count], dtype=torch.float64))
        self._rounds.append((minibatches, means, counts))

    def report(self, *, drained: bool = False) -> bool:
        """Reports rounds that are due, all if `drained`; False while, in one process, another replica's is missing."""
        while len(self._rounds) > (0 if drained else self.delay):
            minibatches, given_means, given_counts = self._rounds[0]
            means, counts = given_means(), given_counts()
            if means is None or counts is None:
                return False
            self._rounds.popleft()
            if self.on_step is not None:
                for minibatch, mean, count in zip(minibatches, means, counts, strict=False):
                    self.on_step(minibatch, StepLoss(mean[0].float(), count.item()))
        return True
