"""Position of a stage in its operation list: next operation, the version it reads, versions to release."""

from collections.abc import Sequence
from typing import Generic, TypeVar

from pipetrain.engine.executors.pipeline_rules import PipelineRules
from pipetrain.engine.program.drain_interval import DrainInterval
from pipetrain.engine.program.planned_operations import PlannedOperation
from pipetrain.engine.program.times import TimeSpan, Wait
from pipetrain.engine.program.trace import TracedList
from pipetrain.engine.program.weight_reads import WeightRead
from pipetrain.engine.stage.base import BaseStage

AnyStage = TypeVar("AnyStage", bound=BaseStage)
_CHECK_EVERY = 100
"""Rounds of a stage's replicas from one whose reads are checked to the next, once the list has begun to repeat."""


class ReadCursor(Generic[AnyStage]):
    """Position in a stage's operation list, from one drain to the next.

    Attributes:
        worker: index of the stage's worker in the pipeline.
        planned: the list.
        start: minibatches of the run before the list.
        base: version of the run that the list counts as 0.
        next: the operation to carry out next; None at the end of the list.
        entered: the last minibatch that has begun; -1 before the first.
    """

    def __init__(self, stage: AnyStage, rules: PipelineRules, interval: DrainInterval) -> None:
        self.stage = stage
        self.rules = rules
        self.worker = rules.replicas.workers_of(stage.index)[stage.replica]
        self.start = interval.start
        self.base = stage.updates
        self.planned = rules.planned(self.worker, interval.minibatches, interval.start)
        self._rest, self._done = iter(self.planned), 0
        self.next: PlannedOperation | None = next(self._rest, None)
        self.entered = -1

    def opens(self, entered: int) -> int:
        """Number of minibatches that begin with the next operation, those that other replicas carry out included.

        `entered` is the last one that has begun in this process.
        """
        return max(0, self.next.operation.minibatch - entered) if self.next is not None else 0

    def end_before(self, minibatch: int) -> None:
        """Ends the list as if the pipeline drained before this minibatch, none of whose operations was carried out."""
        rules, stage = self.rules, self.stage
        # the list of an interval that ends there begins with what was carried out of the longer one
        self.planned = rules.planned(self.worker, minibatch, self.start) if minibatch else []
        left = self.planned[self._done :]
        self._rest = iter(left)
        self.next = next(self._rest, None)
        self.entered = minibatch - 1  # the caller admits what the list still has, also a round cut short
        reads = [each.read.held(each.operation.kind) for each in left]
        awaited = {self.base + held.version for held in reads if held.transform is None}
        for version in set(stage.weights.held()) - {stage.updates} - awaited:
            stage.weights.release(version)

    def traced(self, spans: Sequence[TimeSpan], waits: Sequence[Wait] = ()) -> TracedList:
        """The list for the trace, carried out in these times."""
        replicas = self.rules.replicas.counts[self.stage.index]
        return TracedList(self.worker, self.planned, self.start, self.base, spans, waits, replicas)

    def read(self, planned: PlannedOperation) -> WeightRead:
        """Weights that the next operation, `planned`, reads; the version counts from the start of the run.

        Checked for the first minibatches, twice as many as pass before the list repeats, and in every 100th round.

        Raises:
            InvariantError: by the closed forms of schedule and method it reads something else.
        """
        stage, operation = self.stage, planned.operation
        this_round = self.rules.replicas.round_of(stage.index, operation.minibatch)
        if operation.minibatch < self.rules.settled or this_round % _CHECK_EVERY == 0:
            self.rules.check(stage.index, planned, stage.updates - self.base, self.start)
        read = planned.read.moved(self.base)
        if stage.staleness is not None:
            microbatch = self.start + operation.minibatch, operation.microbatch
            stage.staleness.observe(operation.kind, microbatch, read, stage.weights)
        return read

    def advance(self, planned: PlannedOperation) -> None:
        """Moves past `planned`, and releases the weights that it read if no later operation reads them."""
        if planned.releases:
            held = planned.read.held(planned.operation.kind)
            self.stage.weights.release(self.base + held.version, held.transform)
        self.entered = max(self.entered, planned.operation.minibatch)
        self._done += 1
        self.next = next(self._rest, None)
        if self.next is None:
            self.stage.weights.pool.free()
