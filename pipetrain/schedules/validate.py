"""Checks operation lists before anything runs; a wrong one is shown as a grid with the guilty cell marked."""

from collections.abc import Iterator, Sequence

from pipetrain.schedules.base import Schedule
from pipetrain.schedules.grid import grid, unit_duration
from pipetrain.schedules.operation import Kind, Operation, backward, forward, update
from pipetrain.schedules.timeline import DeadlockError, play


class ScheduleError(ValueError):
    """Operation lists that no pipeline can carry out."""


def checked_lists(schedule: Schedule, stages: int, microbatches: int, minibatches: int) -> list[list[Operation]]:
    """Every stage's list under `schedule`, validated.

    Raises:
        ScheduleError: see `validate`.
    """
    lists = [schedule.operations(r, stages, microbatches, minibatches) for r in range(stages)]
    validate(lists, microbatches, minibatches)
    return lists


def validate(lists: Sequence[Sequence[Operation]], microbatches: int, minibatches: int) -> None:
    """Every microbatch passes every stage once, in one order, F before B before U, and none waits for ever.

    Raises:
        ScheduleError: with the reason and the grid.
    """
    wanted = set(_all_operations(microbatches, minibatches))
    for r, operations in enumerate(lists):
        fault = _first_fault(operations, wanted) or _first_disorder(operations, lists[0])
        if fault is not None:
            index, reason = fault
            raise ScheduleError(f"stage {r}: {reason}\n{grid(lists, (r, index))}")
    try:
        play(lists, unit_duration)
    except DeadlockError as error:
        raise ScheduleError(f"{error}\n{grid(lists)}") from None


def _all_operations(microbatches: int, minibatches: int) -> Iterator[Operation]:
    for t in range(minibatches):
        for j in range(microbatches):
            yield forward(t, j)
            yield backward(t, j)
        yield update(t)


def _first_disorder(operations: Sequence[Operation], first_stage: Sequence[Operation]) -> tuple[int, str] | None:
    for kind, word in ((Kind.FORWARD, "forwards"), (Kind.BACKWARD, "backwards")):
        theirs = iter(op for op in first_stage if op.kind is kind)
        for index, op in enumerate(operations):
            if op.kind is kind and op != next(theirs):
                return (
                    index,
                    f"its {word} are in another order than stage 0's: messages would be mistaken for each other",
                )
    return None


def _first_fault(operations: Sequence[Operation], wanted: set[Operation]) -> tuple[int | None, str] | None:
    position: dict[Operation, int] = {}
    for index, op in enumerate(operations):
        if op in position:
            return index, f"{op} stands twice in its list"
        if op not in wanted:
            return index, f"{op} is of no minibatch of this list"
        position[op] = index
    if missing := wanted - position.keys():
        return None, f"{min(missing, key=str)} is missing from its list"
    for op, index in position.items():
        if op.kind is Kind.BACKWARD and position[forward(op.minibatch, op.microbatch)] > index:
            return index, f"{op} comes before its forward"
        if op.kind is Kind.BACKWARD and position[update(op.minibatch)] < index:
            return index, f"{op} comes after its update"
        if op.kind is Kind.UPDATE and op.minibatch and position[update(op.minibatch - 1)] > index:
            return index, f"{op} comes before the update of the minibatch before it"
    return None
