"""Checks a schedule that is not pipetrain's own before anything is made of its lists."""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

from pipetrain.errors import ConfigError, is_whole
from pipetrain.failure import described
from pipetrain.program.validation import ScheduleError, validate
from pipetrain.schedules.base import ListSchedule, Schedule
from pipetrain.schedules.operation import Kind, Operation

_PACKAGE = __name__.partition(".")[0]
_MOST = 64
"""Minibatches in flight up to which the steady state is looked at, too."""


def check_own(schedule: Schedule, D: int, N: int) -> None:
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
