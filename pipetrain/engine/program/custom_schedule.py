"""Checks of a schedule from outside the package, before anything uses its lists."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from pipetrain.engine.errors import ConfigError, is_whole
from pipetrain.engine.failure import described
from pipetrain.engine.program.steady_state import peak_in_flight
from pipetrain.engine.program.validation import MOST_IN_FLIGHT, ScheduleError, validate
from pipetrain.engine.schedules.base import Family, ListSchedule, Schedule
from pipetrain.engine.schedules.operation import Kind, Operation, update
from pipetrain.engine.schedules.placement import Placement

_PACKAGE = __name__.partition(".")[0]


def check_attributes(schedule: Schedule) -> None:
    """Checks that a schedule has a name and a family.

    Raises:
        ConfigError: it lacks one, or it is of another type.
    """
    if not isinstance(getattr(schedule, "name", None), str):
        raise ConfigError('it has no name; define one in the class, such as name = "mine"')
    family = getattr(schedule, "family", None)
    if not isinstance(family, Family):
        given = "it has no family" if family is None else f"family = {family!r} is no pipetrain.Family"
        choices = ", ".join(f"Family.{each.name}" for each in Family)
        raise ConfigError(f"{given}; define one of {choices} in the class")


def is_custom(part: object) -> bool:
    """True if the class of a schedule or a method is from outside the package."""
    return type(part).__module__.partition(".")[0] != _PACKAGE


def check_custom_schedule(schedule: Schedule, D: int, N: int) -> None:
    """Checks the numbers that a user's schedule returns for D stages, and its lists, short ones and a steady state.

    Raises:
        ConfigError: names the stage and the operation that no pipeline can execute, or the wrong result.
    """
    if not is_custom(schedule):
        return
    if not isinstance(schedule, ListSchedule):
        raise ConfigError("a custom schedule must be a pipetrain.ListSchedule, which gives each stage its operations")
    _called(schedule.check, D, N)
    for r in range(D):
        _check_number(1, schedule.in_flight, r, D, N)
        _check_number(0, schedule.delay, r, D, N)
    placement = _checked_placement(schedule, D)
    filled = max(max(schedule.delay(r, D, N), -(-schedule.in_flight(r, D, N) // N)) for r in range(D))
    for M in sorted({1, 2, 2 * min(MOST_IN_FLIGHT, filled) + 1}):
        lists = [_checked_list(schedule, r, D, N, M) for r in range(D)]
        processes = enumerate(placement.stages_of if placement.several else ())
        orders = [_checked_order(schedule, stages, p, D, N, M) for p, stages in processes]
        try:
            validate(lists, N, M, orders=orders or None)
        except ScheduleError as error:
            reason = str(error).partition("\n")[0]
            raise ConfigError(f"its lists for D={D}, N={N}, M={M} cannot run: {reason}") from error
        for p, order in enumerate(orders if schedule.synchronous else ()):
            _check_updates_together(p, order, lists)
        for r, operations in enumerate(lists):
            _check_versions(schedule, operations, r, D, N)
            if filled < M:
                _check_in_flight(schedule, operations, r, D, N)


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
        raise ConfigError(f"{_call(function, args)} returned {value!r}; must be a whole number of at least {least}")


def _checked_placement(schedule: ListSchedule, D: int) -> Placement:
    """The placement, if it numbers processes as all of a run do: those without replicas by their first stages."""
    placement = _called(schedule.placement, D)
    if not isinstance(placement, Placement):
        raise ConfigError(f"{_call(schedule.placement, (D,))} returned {placement!r}; must be a pipetrain.Placement")
    stages_of = placement.stages_of
    if sorted(itertools.chain.from_iterable(stages_of)) != list(range(D)):
        raise ConfigError(f"{_call(schedule.placement, (D,))} returned {placement}; must have each stage once")
    ascending = tuple(sorted(tuple(sorted(stages)) for stages in stages_of))
    if stages_of != ascending or () in ascending:
        raise ConfigError(
            f"{_call(schedule.placement, (D,))} returned {placement}; must have tuples of stages, none empty, in "
            f"ascending order: {ascending}"
        )
    return placement


def _checked_order(schedule: ListSchedule, stages: Sequence[int], *args: int) -> list[int]:
    """The order of a process, if it is one of its stages."""
    order, call = _called(schedule.order, *args), _call(schedule.order, args)
    if not isinstance(order, list):
        raise ConfigError(f"{call} returned {type(order).__name__}; must be a list of the stages {stages}")
    if {*order} != {*stages}:
        raise ConfigError(f"{call} has the stages {set(order)}; those of the process are {stages}")
    return order


def _checked_list(schedule: ListSchedule, *args: int) -> list[Operation]:
    """The list of a stage, if it is one of operations."""
    operations, call = _called(schedule.operations, *args), _call(schedule.operations, args)
    if not isinstance(operations, list):
        raise ConfigError(f"{call} returned {type(operations).__name__}; must be a list of pipetrain.Operation")
    for index, operation in enumerate(operations):
        if not isinstance(operation, Operation):
            raise ConfigError(f"{call} has {operation!r} at {index}; must be a list of pipetrain.Operation")
    return operations


def _check_updates_together(process: int, order: Sequence[int], lists: Sequence[Sequence[Operation]]) -> None:
    """Checks that the stages of a process update one after the other: they decide together on clipping."""
    rest = [iter(operations) for operations in lists]
    updated: set[int] = set()
    for r in order:
        op = next(rest[r])
        if op.kind is Kind.UPDATE:
            updated.add(r)
        elif updated:
            raise ConfigError(
                f"order of process {process}: {op} of stage {r} lies between updates of its stages; a synchronous "
                "schedule must have these next to each other"
            )
        if len(updated) == len(set(order)):
            updated.clear()


def _check_versions(schedule: ListSchedule, operations: Sequence[Operation], r: int, D: int, N: int) -> None:
    """Checks the closed forms that a run compares its forwards and backwards with."""
    updates = 0
    for index, op in enumerate(operations):
        if op.kind is Kind.UPDATE:
            updates += 1
        elif op.kind is Kind.BACKWARD and op.minibatch != updates:
            raise ConfigError(
                f"stage {r}, operation {index}: {op} starts after {updates} updates; {update(updates)} must come first"
            )
        elif op.kind is Kind.FORWARD:
            if op.minibatch - updates > schedule.delay(r, D, N):
                raise ConfigError(
                    f"stage {r}, operation {index}: {op} starts {op.minibatch - updates} updates before its own, but "
                    f"{_call(schedule.delay, (r, D, N))} returned {schedule.delay(r, D, N)}"
                )
            stated = _called(schedule.newest_at_forward, r, D, N, op.minibatch, op.microbatch or 0)
            if stated != updates:
                raise ConfigError(
                    f"stage {r}, operation {index}: {op} starts after {updates} updates, but newest_at_forward says "
                    f"{stated}, which follows from family and in_flight; make the list and these agree"
                )


def _check_in_flight(schedule: ListSchedule, operations: Sequence[Operation], r: int, D: int, N: int) -> None:
    """Checks the number that memory and plans are computed from, against a list that reaches the steady state."""
    stated, peak = schedule.in_flight(r, D, N), peak_in_flight(operations, N)
    if stated != peak:
        raise ConfigError(
            f"{_call(schedule.in_flight, (r, D, N))} returned {stated}, but the list of stage {r} has up to {peak} "
            "microbatches in flight; make them agree"
        )
