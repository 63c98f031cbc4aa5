"""The schedule and method of a phase: what every stage does and reads, and whether what ran was that."""

from dataclasses import dataclass
from functools import lru_cache

from pipetrain.errors import ConfigError
from pipetrain.methods import Method
from pipetrain.program.recomputation import Spans, with_recomputation
from pipetrain.program.validation import checked_lists
from pipetrain.program.weight_reads import Moment, Place, Read, Readings, answer, closed_moment, readings
from pipetrain.schedules import Kind, Operation, Schedule
from pipetrain.schedules.base import Family
from pipetrain.schedules.operation import forward
from pipetrain.stage.measurements import InvariantError


class Rules:
    """A schedule and a method for so many stages and microbatches.

    Args:
        stages, microbatches: D and N.
        spans: which stages recompute together; none recomputes when null.

    Raises:
        ConfigError: they do not go together.
    """

    def __init__(
        self, schedule: Schedule, method: Method, stages: int, microbatches: int, spans: Spans | None = None
    ) -> None:
        self.schedule = schedule
        self.method = method
        self.stages = stages
        self.microbatches = microbatches
        self.spans = spans
        schedule.check(stages, microbatches)
        method.check(stages, microbatches)
        self._check_leads()
        self.places = [Place.under(schedule, r, stages, microbatches) for r in range(stages)]
        self.lists = lru_cache(maxsize=2)(self._lists)
        self._list = lru_cache(maxsize=2)(self._listed)  # every stage asks for its own and for stage 0's

    def _check_leads(self) -> None:
        if self.schedule.synchronous:
            return  # whenever a recomputation starts, it reads the minibatch's own version
        for r in range(self.stages):
            held, lead = self.schedule.in_flight(r, self.stages, self.microbatches), self._lead(r)
            room = 0 if self.schedule.family is Family.WHOLE_BACKWARD else held - 1
            if lead > room:
                raise ConfigError(
                    f"train.recompute_boundaries: stage {r} would recompute {lead} microbatch steps before a backward, "
                    f"and schedule={self.schedule.name} leaves {room} between that and its forward; schedule=pipemare "
                    "and schedule=pipelined_backprop leave more, or let a segment begin at each stage"
                )

    def _lead(self, stage: int) -> int:
        return self.spans.lead(stage) if self.spans is not None else 0

    def _listed(self, stage: int, minibatches: int) -> list[Operation]:
        operations = self.schedule.operations(stage, self.stages, self.microbatches, minibatches)
        return operations if self.spans is None else with_recomputation(operations, self.spans.lead(stage))

    def _lists(self, minibatches: int) -> list[list[Operation]]:
        return checked_lists(self.schedule, self.stages, self.microbatches, minibatches, self.spans)

    def readings(self, stage: int, minibatches: int, start: int = 0) -> Readings:
        """The list of `stage` and what each of its operations reads, `start` minibatches into the run."""
        own, first = self._list(stage, minibatches), self._list(0, minibatches)
        return readings(self.places[stage], own, first, self.method, self._lead(stage), start)

    @property
    def steady(self) -> int:
        """The first minibatch, after a drain, of the steady state."""
        return self.places[0].delay

    def check(self, stage: int, operation: Operation, read: Read, newest: int, start: int) -> None:
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
        return closed_moment(self.schedule, self.places[stage], operation, self._lead(stage), start)

    def _expected(self, stage: int, moment: Moment) -> Read:
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

    rules: Rules
    start: int
    end: int
