"""The schedule and method of a phase: what every stage does and reads, and whether what ran was that."""

from dataclasses import dataclass
from functools import lru_cache

from pipetrain.errors import ConfigError
from pipetrain.methods import Method
from pipetrain.program.recomputation import RecomputeSegments, with_recomputation
from pipetrain.program.validation import checked_lists
from pipetrain.program.weight_reads import Moment, Readings, StageContext, WeightRead, answer, closed_moment, readings
from pipetrain.schedules import Kind, Operation, Schedule
from pipetrain.schedules.base import Family
from pipetrain.schedules.operation import forward
from pipetrain.stage.measurements import InvariantError


class PipelineRules:
    """A schedule and a method for so many stages and microbatches.

    Args:
        stages, microbatches: D and N.
        segments: which stages recompute together; none recomputes when null.

    Raises:
        ConfigError: they do not go together.
    """

    def __init__(
        self,
        schedule: Schedule,
        method: Method,
        num_stages: int,
        num_microbatches: int,
        segments: RecomputeSegments | None = None,
    ) -> None:
        self.schedule = schedule
        self.method = method
        self.num_stages = num_stages
        self.num_microbatches = num_microbatches
        self.segments = segments
        schedule.check(num_stages, num_microbatches)
        method.check(num_stages, num_microbatches)
        self._check_leads()
        self.contexts = [StageContext.under(schedule, r, num_stages, num_microbatches) for r in range(num_stages)]
        self.lists = lru_cache(maxsize=2)(self._lists)
        self._list = lru_cache(maxsize=2)(self._listed)  # every stage asks for its own and for stage 0's

    def _check_leads(self) -> None:
        if self.schedule.synchronous:
            return  # whenever a recomputation starts, it reads the minibatch's own version
        for r in range(self.num_stages):
            held, lead = self.schedule.in_flight(r, self.num_stages, self.num_microbatches), self._lead(r)
            room = 0 if self.schedule.family is Family.WHOLE_BACKWARD else held - 1
            if lead > room:
                raise ConfigError(
                    f"train.recompute_boundaries: stage {r} would recompute {lead} microbatch steps before a backward, "
                    f"and schedule={self.schedule.name} leaves {room} between that and its forward; schedule=pipemare "
                    "and schedule=pipelined_backprop leave more, or let a segment begin at each stage"
                )

    def _lead(self, stage: int) -> int:
        return self.segments.lead(stage) if self.segments is not None else 0

    def _listed(self, stage: int, minibatches: int) -> list[Operation]:
        operations = self.schedule.operations(stage, self.num_stages, self.num_microbatches, minibatches)
        return operations if self.segments is None else with_recomputation(operations, self.segments.lead(stage))

    def _lists(self, minibatches: int) -> list[list[Operation]]:
        return checked_lists(self.schedule, self.num_stages, self.num_microbatches, minibatches, self.segments)

    def readings(self, stage: int, minibatches: int, start: int = 0) -> Readings:
        """The list of `stage` and what each of its operations reads, `start` minibatches into the run."""
        own, first = self._list(stage, minibatches), self._list(0, minibatches)
        return readings(self.contexts[stage], own, first, self.method, self._lead(stage), start)

    @property
    def steady(self) -> int:
        """The first minibatch, after a drain, of the steady state."""
        return self.contexts[0].delay

    def check(self, stage: int, operation: Operation, read: WeightRead, newest: int, start: int) -> None:
        """What an operation of `stage` is about to read, held against the closed forms of schedule and method.

        Args:
            read: what it reads, the version counted from the last drain.
            newest: updates that the stage has made since then.

        Raises:
            InvariantError: they say otherwise.
        """
        moment = self._moment(stage, operation, start)
        expected = self._expected(stage, moment)
        if newest != moment.newest or read != expected:
            raise InvariantError(
                f"stage {stage}: {operation} reads {read} after {newest} updates, and by the formulas of "
                f"{self.schedule.name} and {self.method.name} it reads {expected} after {moment.newest}"
            )

    def _moment(self, stage: int, operation: Operation, start: int) -> Moment:
        return closed_moment(self.schedule, self.contexts[stage], operation, self._lead(stage), start)

    def _expected(self, stage: int, moment: Moment) -> WeightRead:
        operation = moment.operation
        if operation.kind is Kind.FORWARD:
            return answer(self.method, moment, None)
        theirs = self._moment(stage, forward(operation.minibatch, operation.microbatch or 0), moment.start)
        return answer(self.method, moment, answer(self.method, theirs, None))


@dataclass(frozen=True)
class Phase:
    """A part of a run under one schedule and one method; the pipeline drains before the next.

    Attributes:
        rules: its schedule and method.
        start, end: steps of the run, `end` exclusive.
    """

    rules: PipelineRules
    start: int
    end: int
