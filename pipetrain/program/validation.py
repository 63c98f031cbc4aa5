"""Checks operation lists before anything runs, and schedules from outside the package before their lists are used."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from pipetrain.errors import ConfigError, is_whole
from pipetrain.failure import described
from pipetrain.program.playback import DeadlockError, grid, play, unit_duration
from pipetrain.program.recomputation import RecomputeSegments, with_recomputation
from pipetrain.schedules.base import ListSchedule, Schedule
from pipetrain.schedules.operation import Kind, Operation, forward, update
from pipetrain.schedules.replicas import Replicas


class ScheduleError(ValueError):
    """Operation lists that no pipeline can carry out."""


def checked_lists(
    schedule: ListSchedule,
    num_stages: int,
    num_microbatches: int,
    minibatches: int,
    segments: RecomputeSegments | None = None,
) -> list[list[Operation]]:
    """Every worker's list under `schedule`, validated; with recomputation where there are segments.

    Raises:
        ScheduleError: see `validate`.
    """
    replicas = schedule.replicas(num_stages)
    lists = [
        schedule.of_worker(worker, num_stages, num_microbatches, minibatches) for worker in range(replicas.num_workers)
    ]
    if segments is not None:
        lists = [with_recomputation(each, segments.lead(replicas.stage_of(w))) for w, each in enumerate(lists)]
    validate(lists, num_microbatches, minibatches, segments, replicas)
    return lists


def validate(
    lists: Sequence[Sequence[Operation]],
    num_microbatches: int,
    minibatches: int,
    segments: RecomputeSegments | None = None,
    replicas: Replicas | None = None,
) -> None:
    """Every microbatch passes every stage once, in one order, F before R before B before U, and none waits forever.

    With replicas each passes the one of every stage that it goes to, and every replica has the updates of its stage.

    Raises:
        ScheduleError: with the reason and the grid.
    """
    kinds = (Kind.FORWARD, Kind.BACKWARD) if segments is None else (Kind.FORWARD, Kind.RECOMPUTATION, Kind.BACKWARD)
    workers = replicas or Replicas.one_each(len(lists))
    first_stage = _of_stage_0(lists, workers)
    for worker, operations in enumerate(lists):
        rounds = _Rounds.of(workers, worker, num_microbatches, minibatches)
        fault = _first_fault(operations, rounds, kinds) or _first_disorder(operations, first_stage, kinds)
        if fault is not None:
            index, reason = fault
            place = "" if index is None else f", operation {index}"
            raise ScheduleError(f"{workers.name(worker)}{place}: {reason}\n{grid(lists, (worker, index), workers)}")
    try:
        play(lists, unit_duration, segments, replicas=workers)
    except DeadlockError as error:
        raise ScheduleError(f"{error}\n{grid(lists, replicas=workers)}") from None


_MicrobatchOp = tuple[Kind, int, int | None]


@dataclass(frozen=True)
class _Rounds:
    """Minibatches and rounds that a worker's list has to contain.

    Attributes:
        own: its minibatches.
        ends: the last minibatch of each round of its stage, which the update is named after.
        size: minibatches of a round.
        num_microbatches: N.
    """

    own: Collection[int]
    ends: Sequence[int]
    size: int
    num_microbatches: int

    @classmethod
    def of(cls, replicas: Replicas, worker: int, num_microbatches: int, minibatches: int) -> "_Rounds":
        stage = replicas.stage_of(worker)
        ends = replicas.round_ends(stage, minibatches)
        return cls(replicas.own(worker, minibatches), ends, replicas.counts[stage], num_microbatches)

    def everything(self, kinds: Collection[Kind]) -> Iterator[_MicrobatchOp]:
        for t in self.own:
            for j in range(self.num_microbatches):
                yield from ((kind, t, j) for kind in kinds)
        yield from ((Kind.UPDATE, end, None) for end in self.ends)

    def end(self, minibatch: int) -> int:
        """The last minibatch of its round."""
        return self.ends[minibatch // self.size]


def _of_stage_0(lists: Sequence[Sequence[Operation]], replicas: Replicas) -> list[Operation]:
    """Operations of the workers of stage 0, in the order of the minibatches if there are several workers."""
    first = [op for worker in replicas.workers_of(0) for op in lists[worker]]
    return first if replicas.counts[0] == 1 else sorted(first, key=lambda op: op.minibatch)


def _microbatch_ops(op: Operation, num_microbatches: int) -> Iterator[_MicrobatchOp]:
    if op.kind is Kind.UPDATE:
        yield op.kind, op.minibatch, None
    else:
        yield from ((op.kind, op.minibatch, j) for j in op.covers(num_microbatches))


_WORDS = {Kind.FORWARD: "forwards", Kind.RECOMPUTATION: "recomputations", Kind.BACKWARD: "backwards"}


def _first_disorder(
    operations: Sequence[Operation], first_stage: Sequence[Operation], kinds: Collection[Kind]
) -> tuple[int, str] | None:
    own = {op.minibatch for op in operations if op.kind is not Kind.UPDATE}
    for kind in kinds:
        in_order = iter(op for op in first_stage if op.kind is kind and op.minibatch in own)
        for index, op in enumerate(operations):
            if op.kind is kind and op != next(in_order):
                order = f"its {_WORDS[kind]} are in another order than stage 0's"
                return index, f"{order}: messages would be mistaken for each other"
    return None


def _first_fault(
    operations: Sequence[Operation], rounds: _Rounds, kinds: Collection[Kind]
) -> tuple[int | None, str] | None:
    expected = set(rounds.everything(kinds))
    position: dict[_MicrobatchOp, int] = {}
    for index, op in enumerate(operations):
        for single in _microbatch_ops(op, rounds.num_microbatches):
            if single in position:
                return index, f"{op} stands twice in its list"
            if single not in expected:
                return index, f"{op} is of no minibatch of this list"
            position[single] = index
    if missing := expected - position.keys():
        return None, f"{min(_name(single) for single in missing)} is missing from its list"
    for single, index in position.items():
        if (other := _misplaced(single, index, position, rounds)) is not None:
            return index, f"{operations[index]} comes {other}"
    return None


def _misplaced(single: _MicrobatchOp, index: int, position: Mapping[_MicrobatchOp, int], rounds: _Rounds) -> str | None:
    """Before or after what `single`, which is at `index`, stands and must not."""
    kind, t, j = single
    if kind is Kind.UPDATE:
        before = kind, rounds.end(t - rounds.size) if t >= rounds.size else -1, None
        return "before the update of the minibatch before it" if position.get(before, -1) > index else None
    if kind is Kind.FORWARD:
        return None
    if position[Kind.FORWARD, t, j] > index:
        return "before its forward"
    if kind is Kind.BACKWARD and position.get((Kind.RECOMPUTATION, t, j), -1) > index:
        return "before its recomputation"
    updated = position[Kind.UPDATE, rounds.end(t), None] < index
    return "after its update" if kind is Kind.BACKWARD and updated else None


def _name(single: _MicrobatchOp) -> str:
    kind, t, j = single
    return str(update(t) if kind is Kind.UPDATE else forward(t, j or 0).like(kind))


_PACKAGE = __name__.partition(".")[0]
_MOST = 64
"""Minibatches in flight up to which the steady state is looked at, too."""


def check_custom_schedule(schedule: Schedule, D: int, N: int) -> None:
    """Checks what a schedule of the user's says of D stages, and its lists for few minibatches and for a steady state.

    Raises:
        ConfigError: names the stage and the operation that no pipeline can carry out, or what the schedule returned in
            place of a list.
    """
    if type(schedule).__module__.partition(".")[0] == _PACKAGE:
        return
    if not isinstance(schedule, ListSchedule):
        raise ConfigError("a schedule of your own is a pipetrain.ListSchedule, which gives each stage its operations")
    _called(schedule.check, D, N)
    for r in range(D):
        _check_number(1, schedule.in_flight, r, D, N)
        _check_number(0, schedule.delay, r, D, N)
    longest = min(_MOST, max(schedule.delay(r, D, N) for r in range(D)))
    for M in sorted({1, 2, 2 * longest + 1}):
        lists = [_listed(schedule, r, D, N, M) for r in range(D)]
        try:
            validate(lists, N, M)
        except ScheduleError as error:
            reason = str(error).partition("\n")[0]
            raise ConfigError(f"its lists for D={D}, N={N}, M={M} cannot run: {reason}") from error
        for r, operations in enumerate(lists):
            _check_versions(schedule, operations, r, D, N)


def _called(function: Callable[..., Any], *args: int) -> Any:
    try:
        return function(*args)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"{_call(function, args)} raised {described(error)}") from error


def _call(function: Callable[..., Any], args: Sequence[int]) -> str:
    return f"{function.__name__}({', '.join(map(str, args))})"


def _check_number(least: int, function: Callable[..., Any], *args: int) -> None:
    value = _called(function, *args)
    if not is_whole(value) or value < least:
        raise ConfigError(f"{_call(function, args)} returned {value!r}; a whole number of at least {least} is needed")


def _listed(schedule: ListSchedule, r: int, D: int, N: int, M: int) -> list[Operation]:
    """The list of a stage, as far as one may be long: one that never ends has an operation too many."""
    call, most = _call(schedule.operations, (r, D, N, M)), M * (2 * N + 1)
    found = _called(schedule.operations, r, D, N, M)
    if not isinstance(found, Iterable):
        raise ConfigError(f"{call} returned {type(found).__name__}; a list of pipetrain.Operation is needed")
    try:
        operations: list[object] = list(islice(found, most + 1))
    except Exception as error:
        raise ConfigError(f"{call} raised {described(error)}") from error
    for index, operation in enumerate(operations):
        if not isinstance(operation, Operation):
            raise ConfigError(f"{call} has {operation!r} at {index}; a list of pipetrain.Operation is needed")
    if len(operations) > most:
        raise ConfigError(
            f"{call} has more than {most} operations; {N} forwards, {N} backwards and one update are the most for "
            "each minibatch"
        )
    if not isinstance(found, list):
        raise ConfigError(f"{call} returned {type(found).__name__}; a list is needed")
    return found


def _check_versions(schedule: ListSchedule, operations: Sequence[Operation], r: int, D: int, N: int) -> None:
    """Checks the closed form by which a run checks what its forwards read."""
    updates = 0
    for index, op in enumerate(operations):
        if op.kind is Kind.UPDATE:
            updates += 1
        elif op.kind is Kind.FORWARD:
            told = _called(schedule.newest_at_forward, r, D, N, op.minibatch, op.microbatch or 0)
            if told != updates:
                raise ConfigError(
                    f"stage {r}, operation {index}: {op} starts after {updates} updates, but newest_at_forward says "
                    f"{told}, which follows from family and in_flight; make the list and these agree"
                )
