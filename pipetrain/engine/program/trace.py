"""Records of executed operation lists."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pipetrain.engine.program.drain_interval import DrainInterval
from pipetrain.engine.program.planned_operations import PlannedOperation
from pipetrain.engine.program.times import TimeSpan, Wait


@dataclass(frozen=True)
class TracedList:
    """A worker's executed list.

    Attributes:
        worker: without replicas its stage.
        planned: the list.
        start: minibatches of the run before the list.
        base: the version that the list calls 0.
        spans: the time of each operation.
        waits: times of sending or waiting for messages.
        replicas: number of workers of its stage.
    """

    worker: int
    planned: Sequence[PlannedOperation]
    start: int
    base: int
    spans: Sequence[TimeSpan]
    waits: Sequence[Wait] = ()
    replicas: int = 1


class Trace(Protocol):
    """The trace of a run, or of the stages of one of its processes."""

    def add(self, interval: DrainInterval, lists: Sequence[TracedList], drained_at: float = 0.0) -> None:
        """Records the lists of an interval.

        `drained_at` is when the drain at its end was over, at once in all processes, by this machine's clock.
        """
