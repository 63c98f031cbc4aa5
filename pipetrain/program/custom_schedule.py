"""Checks of a schedule from outside the package, before anything uses its lists."""

from collections.abc import Callable, Sequence
from typing import Any

from pipetrain.errors import ConfigError, is_whole
from pipetrain.failure import described
from pipetrain.program.validation import ScheduleError, validate
from pipetrain.schedules.base import ListSchedule, Schedule
from pipetrain.schedules.operation import Kind, Operation

_PACKAGE = __name__.partition(".")[0]
_MOST_IN_FLIGHT = 64
"""Largest number of minibatches in flight for which a steady state is checked."""


def check_custom_schedule(schedule: Schedule, D: int, N: int) -> None:
    """Checks the numbers that a user's schedule returns for D stages, and its lists, short ones and a steady state.

    Raises:
        ConfigError: names the stage and the operation that no pipeline can execute, or the wrong result.
    """
    if type(schedule).__module__.partition(".")[0] == _PACKAGE:
        return
    if not isinstance(schedule, ListSchedule):
        raise ConfigError("a custom schedule must be a pipetrain.ListSchedule, which gives each stage its operations")
    _called(schedule.check, D, N)
    for r in range(D):
        _check_number(1, schedule.in_flight, r, D, N)
        _check_number(0, schedule.delay, r, D, N)
    longest = min(_MOST_IN_FLIGHT, max(schedule.delay(r, D, N) for r in range(D)))
    for M in sorted({1, 2, 2 * longest + 1}):
        lists = [_checked_list(schedule, r, D, N, M) for r in range(D)]
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


def _checked_list(schedule: ListSchedule, *args: int) -> list[Operation]:
    """The list of a stage, if it is one of operations."""
    operations, call = _called(schedule.operations, *args), _call(schedule.operations, args)
    if not isinstance(operations, list):
        raise ConfigError(f"{call} returned {type(operations).__name__}; a list of pipetrain.Operation is needed")
    for index, operation in enumerate(operations):
        if not isinstance(operation, Operation):
            raise ConfigError(f"{call} has {operation!r} at {index}; a list of pipetrain.Operation is needed")
    return operations


def _check_versions(schedule: ListSchedule, operations: Sequence[Operation], r: int, D: int, N: int) -> None:
    """Checks the closed form that a run compares its forwards with."""
    updates = 0
    for index, op in enumerate(operations):
        if op.kind is Kind.UPDATE:
            updates += 1
        elif op.kind is Kind.FORWARD:
            stated = _called(schedule.newest_at_forward, r, D, N, op.minibatch, op.microbatch or 0)
            if stated != updates:
                raise ConfigError(
                    f"stage {r}, operation {index}: {op} starts after {updates} updates, but newest_at_forward says "
                    f"{stated}, which follows from family and in_flight; make the list and these agree"
                )
