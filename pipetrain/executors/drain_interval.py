"""What an executor carries out at a time: the minibatches between two drains."""

from dataclasses import dataclass


@dataclass(frozen=True)
class DrainInterval:
    """Consecutive minibatches of one epoch, between two drains.

    Attributes:
        epoch: from 0.
        first, last: minibatches of the epoch, the last exclusive.
        start: minibatches of the run before `first`.
        phase: the number of the phase that it is of.
    """

    epoch: int
    first: int
    last: int
    start: int
    phase: int = 0

    @property
    def minibatches(self) -> int:
        """How many."""
        return self.last - self.first
