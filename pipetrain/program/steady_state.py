"""What a played timeline says of a pipeline that has filled: its rate, its idle shares, what it holds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pipetrain.program.playback import Slice
from pipetrain.schedules.base import ListSchedule
from pipetrain.schedules.operation import Kind, Operation

_MORE = 16
"""Minibatches measured in addition, so that shallow pipelines have an average over more than a few."""
_EQUAL = 1e-9
"""Two times differ by rounding alone where they differ by less, relative to a period."""


@dataclass(frozen=True)
class Steady:
    """The steady state between two drains.

    Attributes:
        period: time from one update to the next, on average; the same for all stages.
        idle: the share of it in which a stage computes nothing, by stage.
    """

    period: float
    idle: list[float]


def peak_in_flight(operations: Sequence[Operation], num_microbatches: int) -> int:
    """The most microbatches whose forward a stage has started and whose backward it has not finished."""
    held = peak = 0
    for op in operations:
        if op.kind is Kind.FORWARD:
            held += 1
            peak = max(peak, held)
        elif op.kind is Kind.BACKWARD:
            held -= len(op.covers(num_microbatches))
    return peak


def minibatches_held(schedule: ListSchedule, D: int, N: int) -> int:
    """Minibatches in flight on stage 0, a part counted as one."""
    return -(-schedule.in_flight(0, D, N) // N)


def steady_state(schedule: ListSchedule, D: int, N: int, played: Callable[[int], Sequence[Sequence[Slice]]]) -> Steady:
    """The steady state of a schedule; `played` gives the slices of so many minibatches and their drain.

    Times repeat every few minibatches once the slowest stages and links rule. That number is found where it is small,
    and the period is exact; else the average over some tens of minibatches stands for it.
    """
    held = minibatches_held(schedule, D, N)
    first, last = _filled_minibatches(held, D)
    rows = played(last + held)
    ends = [_update_ends(row)[first:last] for row in rows]
    period = _period(ends)
    return Steady(period, [max(0.0, 1.0 - _busy(row, first) / period) for row in rows])


def _filled_minibatches(held: int, D: int) -> tuple[int, int]:
    """(first, last), the last exclusive: minibatches well past the fill, enough to find a period in half of them."""
    first = 2 * (held + D)
    return first, first + 2 * max(held, D) + _MORE


def _update_ends(row: Sequence[Slice]) -> list[float]:
    return [piece.end for piece in row if piece.operation.kind is Kind.UPDATE]


def _period(ends: Sequence[Sequence[float]]) -> float:
    half = len(ends[0]) // 2
    for cycle in range(1, half):
        steps = [row[-1 - back] - row[-1 - back - cycle] for row in ends for back in range(half)]
        if max(steps) - min(steps) <= _EQUAL * max(steps):
            return steps[0] / cycle
    return sum(row[-1] - row[-1 - half] for row in ends) / len(ends) / half


def _busy(row: Sequence[Slice], minibatch: int) -> float:
    return sum(piece.end - piece.start for piece in row if piece.operation.minibatch == minibatch)


def between_updates(row: Sequence[Slice], first: int, last: int) -> tuple[float, float]:
    """A stage from the update before minibatch `first` to that of `last` - 1: that time, and its idle share.

    Where `first` is 0 it begins with the stage's first operation.
    """
    ends = _update_ends(row)
    begin, end = ends[first - 1] if first else row[0].start, ends[last - 1]
    busy = sum(max(0.0, min(piece.end, end) - max(piece.start, begin)) for piece in row)
    return end - begin, max(0.0, 1.0 - busy / (end - begin))
