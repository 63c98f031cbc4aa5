"""What a schedule is: a pure function from a stage's place in the pipeline to its finite list of operations."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from enum import StrEnum
from typing import ClassVar

from pipetrain.schedules.operation import Operation, backward, forward, update
from pipetrain.schedules.placement import Placement


class Family(StrEnum):
    """Schedules that the same methods go with: a method names its family, and goes with every schedule of it."""

    SYNCHRONOUS = "synchronous"
    """Drained at every minibatch."""
    CONTINUOUS = "continuous"
    """Never drained between minibatches; one update after every N-th backward."""
    DOUBLE_BUFFERED = "double-buffered"
    """Continuous, with so many microbatches in a minibatch that two versions serve all in flight."""
    WHOLE_BACKWARD = "whole-backward"
    """Continuous; microbatches go forward one by one, and back as one minibatch."""


class Schedule(ABC):
    """Says when each stage does what. Knows nothing of tensors, processes or methods.

    A list covers the minibatches between two drains; r is the stage, D the number of stages, N the microbatches of a
    minibatch, M the minibatches.

    Attributes:
        listed: whether it has lists, which the executors walk; else a library carries it out by itself.
    """

    name: ClassVar[str]
    family: ClassVar[Family]
    listed: ClassVar[bool] = True

    @property
    def synchronous(self) -> bool:
        """Whether every stage finishes its update before it starts a forward of the next minibatch."""
        return self.family is Family.SYNCHRONOUS

    def check(self, D: int, N: int) -> None:  # noqa: B027  (most run anywhere)
        """Raises ConfigError where it cannot run on D stages with N microbatches."""

    def placement(self, D: int) -> Placement:
        """Which process has which of D stages."""
        return Placement.one_each(D)

    @abstractmethod
    def in_flight(self, r: int, D: int, N: int) -> int:
        """Forwards (microbatches) that stage r has started and not finished backward, in steady state."""

    @abstractmethod
    def operations(self, r: int, D: int, N: int, M: int) -> list[Operation]:
        """The list of stage r for M minibatches of N microbatches."""

    def newest_at_forward(self, r: int, D: int, N: int, t: int, j: int) -> int:
        """Updates behind stage r when F(t, j) starts: t, or under a continuous schedule max(0, floor((k - d) / N)).

        k = tN + j, d = in-flight(r) - 1. A closed form, so that what ran can be held against it.
        """
        if self.synchronous:
            return t
        return max(0, (t * N + j - (self.in_flight(r, D, N) - 1)) // N)

    def delay(self, r: int, D: int, N: int) -> int:
        """Updates that stage r makes, at most, between a minibatch's forward and the update with its gradient."""
        return 0 if self.synchronous else -(-(self.in_flight(r, D, N) - 1) // N)


def one_forward_one_backward(warm_up: int, N: int, first: int, minibatches: int) -> Iterator[Operation]:
    """`warm_up` forwards, then a forward and a backward in turn, then the backwards left; a U after every N-th.

    Covers the microbatches of `minibatches` minibatches from minibatch `first` on.
    """
    total = minibatches * N
    for k in range(total + warm_up):
        if k < total:
            yield forward(first + k // N, k % N)
        if (done := k - warm_up) >= 0:
            yield backward(first + done // N, done % N)
            if done % N == N - 1:
                yield update(first + done // N)
