"""Checks operation lists before anything runs; a wrong one is shown as a grid with the guilty cell marked."""

from collections.abc import Collection, Iterator, Mapping, Sequence

from pipetrain.program.playback import DeadlockError, play
from pipetrain.program.recomputation import RecomputeSegments, with_recomputation
from pipetrain.program.text_grid import grid, unit_duration
from pipetrain.schedules.base import ListSchedule
from pipetrain.schedules.operation import Kind, Operation, forward, update


class ScheduleError(ValueError):
    """Operation lists that no pipeline can carry out."""


def checked_lists(
    schedule: ListSchedule,
    num_stages: int,
    num_microbatches: int,
    minibatches: int,
    segments: RecomputeSegments | None = None,
) -> list[list[Operation]]:
    """Every stage's list under `schedule`, validated; with recomputation where there are segments.

    Raises:
        ScheduleError: see `validate`.
    """
    lists = [schedule.operations(r, num_stages, num_microbatches, minibatches) for r in range(num_stages)]
    if segments is not None:
        lists = [with_recomputation(operations, segments.lead(r)) for r, operations in enumerate(lists)]
    validate(lists, num_microbatches, minibatches, segments)
    return lists


def validate(
    lists: Sequence[Sequence[Operation]],
    num_microbatches: int,
    minibatches: int,
    segments: RecomputeSegments | None = None,
) -> None:
    """Every microbatch passes every stage once, in one order, F before R before B before U, and none waits for ever.

    Raises:
        ScheduleError: with the reason and the grid.
    """
    kinds = (Kind.FORWARD, Kind.BACKWARD) if segments is None else (Kind.FORWARD, Kind.RECOMPUTATION, Kind.BACKWARD)
    expected = set(_everything(num_microbatches, minibatches, kinds))
    for r, operations in enumerate(lists):
        fault = _first_fault(operations, expected, num_microbatches) or _first_disorder(operations, lists[0], kinds)
        if fault is not None:
            index, reason = fault
            raise ScheduleError(f"stage {r}: {reason}\n{grid(lists, (r, index))}")
    try:
        play(lists, unit_duration, segments)
    except DeadlockError as error:
        raise ScheduleError(f"{error}\n{grid(lists)}") from None


_MicrobatchOp = tuple[Kind, int, int | None]


def _everything(num_microbatches: int, minibatches: int, kinds: Collection[Kind]) -> Iterator[_MicrobatchOp]:
    for t in range(minibatches):
        for j in range(num_microbatches):
            yield from ((kind, t, j) for kind in kinds)
        yield Kind.UPDATE, t, None


def _microbatch_ops(op: Operation, num_microbatches: int) -> Iterator[_MicrobatchOp]:
    if op.kind is Kind.UPDATE:
        yield op.kind, op.minibatch, None
    else:
        yield from ((op.kind, op.minibatch, j) for j in op.covers(num_microbatches))


_WORDS = {Kind.FORWARD: "forwards", Kind.RECOMPUTATION: "recomputations", Kind.BACKWARD: "backwards"}


def _first_disorder(
    operations: Sequence[Operation], first_stage: Sequence[Operation], kinds: Collection[Kind]
) -> tuple[int, str] | None:
    for kind in kinds:
        in_order = iter(op for op in first_stage if op.kind is kind)
        for index, op in enumerate(operations):
            if op.kind is kind and op != next(in_order):
                order = f"its {_WORDS[kind]} are in another order than stage 0's"
                return index, f"{order}: messages would be mistaken for each other"
    return None


def _first_fault(
    operations: Sequence[Operation], expected: set[_MicrobatchOp], N: int
) -> tuple[int | None, str] | None:
    position: dict[_MicrobatchOp, int] = {}
    for index, op in enumerate(operations):
        for single in _microbatch_ops(op, N):
            if single in position:
                return index, f"{op} stands twice in its list"
            if single not in expected:
                return index, f"{op} is of no minibatch of this list"
            position[single] = index
    if missing := expected - position.keys():
        return None, f"{min(_name(single) for single in missing)} is missing from its list"
    for single, index in position.items():
        if (other := _misplaced(single, index, position)) is not None:
            return index, f"{operations[index]} comes {other}"
    return None


def _misplaced(single: _MicrobatchOp, index: int, position: Mapping[_MicrobatchOp, int]) -> str | None:
    """Before or after what `single`, which is at `index`, stands and must not."""
    kind, t, j = single
    if kind is Kind.UPDATE:
        return "before the update of the minibatch before it" if position.get((kind, t - 1, None), -1) > index else None
    if kind is Kind.FORWARD:
        return None
    if position[Kind.FORWARD, t, j] > index:
        return "before its forward"
    if kind is Kind.BACKWARD and position.get((Kind.RECOMPUTATION, t, j), -1) > index:
        return "before its recomputation"
    return "after its update" if kind is Kind.BACKWARD and position[Kind.UPDATE, t, None] < index else None


def _name(single: _MicrobatchOp) -> str:
    kind, t, j = single
    return str(update(t) if kind is Kind.UPDATE else forward(t, j or 0).like(kind))
