"""Where a stage is in its list: what comes next, what that reads, and which versions are done with."""

from typing import Generic, TypeVar

from pipetrain.executors.phase import PipelineRules
from pipetrain.program.drain_interval import DrainInterval
from pipetrain.program.planned_operations import PlannedOperation
from pipetrain.program.weight_reads import WeightRead
from pipetrain.stage.base import BaseStage

AnyStage = TypeVar("AnyStage", bound=BaseStage)


class ReadCursor(Generic[AnyStage]):
    """A place in a stage's list, from one drain to the next.

    Args:
        stage: the stage.
        rules: what it does and reads.
        interval: the minibatches of the list.

    Attributes:
        planned: the list.
        next: the operation to carry out next; None at the end of the list.
        start: minibatches of the run before the list.
        base: the version that the list calls 0.
    """

    def __init__(self, stage: AnyStage, rules: PipelineRules, interval: DrainInterval) -> None:
        self.stage = stage
        self.rules = rules
        self.start = interval.start
        self.base = stage.updates
        self.planned = rules.planned(stage.index, interval.minibatches, interval.start)
        self._rest = iter(self.planned)
        self.next: PlannedOperation | None = next(self._rest, None)

    def read(self, planned: PlannedOperation) -> WeightRead:
        """What the next operation, `planned`, reads, its version counted from the start of the run.

        Raises:
            InvariantError: by the closed forms of schedule and method it reads something else.
        """
        self.rules.check(self.stage.index, planned, self.stage.updates - self.base, self.start)
        return planned.read.moved(self.base)

    def advance(self, planned: PlannedOperation) -> None:
        """Goes on from `planned`; the version that it read is released where no later operation reads it."""
        if planned.releases:
            self.stage.weights.release(self.base + planned.read.version)
        self.next = next(self._rest, None)
        if self.next is None:
            self.stage.weights.spare.free()
