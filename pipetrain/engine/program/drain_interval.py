"""The minibatches between two drains, which an executor carries out at a time."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class DrainInterval:
    """Consecutive minibatches of one epoch, between two drains.

    Attributes:
        epoch: from 0.
        first, last: minibatches of the epoch, `last` exclusive.
        start: minibatches of the run before `first`.
        phase: from 0.
    """

    epoch: int
    first: int
    last: int
    start: int
    phase: int = 0

    @classmethod
    def whole(cls, minibatches: int) -> "DrainInterval":
        """A first epoch of `minibatches`, drained once at its end."""
        return cls(epoch=0, first=0, last=minibatches, start=0)

    def ended_after(self, minibatches: int) -> "DrainInterval":
        """The first `minibatches` of it, after which the pipeline was drained early."""
        return replace(self, last=self.first + minibatches)

    @property
    def minibatches(self) -> int:
        """Number of minibatches."""
        return self.last - self.first
