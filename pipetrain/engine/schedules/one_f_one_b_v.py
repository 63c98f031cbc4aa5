"""1F1B of split backwards on two stages per process, in a V: never flushed, with fewer microbatches in flight."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, permutations
from typing import ClassVar, TypeAlias

from typing_extensions import override

from pipetrain.engine.errors import ConfigError, is_whole
from pipetrain.engine.schedules.base import Family
from pipetrain.engine.schedules.operation import Kind, backward, forward, update, weight_gradient
from pipetrain.engine.schedules.process_lists import StageOperation, VShaped

_Order: TypeAlias = tuple[int, int, int, int, int]
"""Starts of F and B of stage D - 1 - p, B of stage p, W of stage D - 1 - p and W of stage p, after F of stage p."""


@dataclass(frozen=True)
class OneFOneBV(VShaped):
    """Process p has stages p and D - 1 - p; each does an F, a B and a W in every period, with no flush.

    With equal times a microbatch comes back to stage 0 after D/3 periods, so two in three of those under 1F1B on the
    same number of processes are in flight (V-Min of Qi et al. 2024, *Pipeline Parallelism with Controllable Memory*,
    without its flush).

    Attributes:
        times: relative durations of F, B and W; processes whose operations last as long are never idle.
    """

    name: ClassVar[str] = "1f1b_v"
    family: ClassVar[Family] = Family.CONTINUOUS
    splits_backward: ClassVar[bool] = True
    times: Sequence[int] = (1, 1, 1)

    def __post_init__(self) -> None:
        times = self.times if isinstance(self.times, list | tuple) else ()
        if len(times) != 3 or not all(is_whole(each) and each > 0 for each in times):
            raise ConfigError(f"schedule.times={self.times}: must be three whole numbers from 1 on, such as [3,3,2]")
        object.__setattr__(self, "times", tuple(each // math.gcd(*times) for each in times))

    def _ahead(self, r: int, D: int, which: int) -> int:
        """Whole periods from F of a microbatch to its B (1) or W (2)."""
        starts = _starts(*self.times, D)[r]
        return (starts[which] - starts[0]) // (2 * sum(self.times))

    @override
    def in_flight(self, r: int, D: int, N: int) -> int:
        """The periods from F to B, rounded up; with equal times ceil((2D - 1 - 2r) / 6), + 2 units if 3 divides D."""
        return self._ahead(r, D, 1) + 1

    @override
    def of_process(self, p: int, D: int, N: int, M: int) -> Iterator[StageOperation]:
        """Operations in the order of their times; an update follows the last W of each minibatch.

        With D = 4, N = 1 and M = 4 (F1 is F1.0; capitals: stages 2 and 3)::

            stages 0 and 3  f0 .  .  F0 B0 W0 f1 b0 w0 F1 B1 W1 f2 b1 w1 F2 B2 W2 f3 b2 w2 F3 B3 W3 .  b3 w3
            stages 1 and 2  .  f0 F0 .  .  B0 b0 f1 F1 W0 w0 B1 b1 f2 F2 W1 w1 B2 b2 f3 F3 W2 w2 B3 b3 W3 w3
        """
        timed = (
            (start + 2 * sum(self.times) * k, stage, operation(*divmod(k, N)))
            for stage in self.placement(D).stages_of[p]
            for operation, start in zip(
                (forward, backward, weight_gradient), _starts(*self.times, D)[stage], strict=True
            )
            for k in range(M * N)
        )
        for _, stage, op in sorted(timed, key=lambda entry: entry[0]):
            yield stage, op
            if op.kind is Kind.WEIGHT_GRADIENT and op.microbatch == N - 1:
                yield stage, update(op.minibatch)

    @override
    def newest_at_forward(self, r: int, D: int, N: int, t: int, j: int) -> int:
        """max(0, floor((tN + j - d) / N)), where d + 1 forwards begin before the first W."""
        return max(0, (t * N + j - self._ahead(r, D, 2)) // N)

    @override
    def delay(self, r: int, D: int, N: int) -> int:
        return -(-self._ahead(r, D, 2) // N)


@cache
def _starts(f: int, b: int, w: int, D: int) -> list[tuple[int, int, int]]:
    """Starts of F, B and W of microbatch 0 on each stage; those of microbatch k are k periods T = 2(f + b + w) later.

    The operations of each process fill the period.
    """
    return [_of_equal_times(r, D) for r in range(D)] if f == b == w else _fewest_periods(f, b, w, D)


def _of_equal_times(r: int, D: int) -> tuple[int, int, int]:
    """The starts with the least time from F to B on stage 0, as in V-Min.

    F and B go from stage to stage without a wait, except for two units before the first B if 3 divides D, as those of a
    process would coincide. W follows B by 1, 2 or 4 units, the first of these at which both stages of the process find
    it idle.
    """
    pair = [(s, 2 * D - 1 - s + (2 if D % 3 == 0 else 0)) for s in (r, D - 1 - r)]
    taken = {time % 6 for times in pair for time in times}
    lag = next(lag for lag in (1, 2, 4) if not taken & {(b + lag) % 6 for _, b in pair})
    f, b = pair[0]
    return f, b, b + lag


def _fewest_periods(f: int, b: int, w: int, D: int) -> list[tuple[int, int, int]]:
    """The starts with the fewest whole periods from F to W, summed over the stages.

    Among these, the time from F to B on stage 0 is the least, and then the longer of the two waits of a process before
    a W.

    W - F of a stage is the time of all steps from its F on, forth and back, to its W; the order of its process gives it
    modulo T. So whole periods are few if steps are short. A step between stages r and r + 1 counts for stages 0 to r,
    and depends on the orders of both processes and the shift between these. That makes the least sum the length of a
    shortest path from process to process, through one order of each.
    """
    T, P = 2 * (f + b + w), D // 2
    back = 8 * D * D * T  # more than the sum of all W - F
    whole = back * back

    def step(least: int, start: int, end: int) -> int:
        """Time from a start to the first of the starts `end`, modulo T, that is `least` or more later."""
        return least + (end - start - least) % T

    costs: dict[_Order, int] = {}
    """Order of a process -> its part of the path's length: the waits before its Ws, less W - F modulo T."""
    for order in permutations(range(5)):
        begins = accumulate(((f, b, b, w, w)[op] for op in order[:-1]), initial=f)
        far_f, far_b, near_b, far_w, near_w = (begin for _, begin in sorted(zip(order, begins, strict=True)))
        waits = step(b, far_b, far_w), step(b, near_b, near_w)
        rests = (far_w - far_f) % T + near_w
        costs[far_f, far_b, near_b, far_w, near_w] = whole * (sum(waits) - rests) + max(waits)
    costs = {x: cost for x, cost in costs.items() if all(cost <= costs[y] for y in costs if x[:3] == y[:3])}

    def joins(x: _Order, y: _Order) -> Iterator[tuple[int, int, int]]:
        """(steps of stages p and p + 1, of the other two, shift): some step has no wait, others gain nothing."""
        for shift in {each % T for each in (f, x[0] - f - y[0], x[1] + b - y[1], x[2] - b - y[2])}:
            near = step(f, 0, shift) + step(b, y[2] + shift, x[2])
            yield near, step(f, y[0] + shift, x[0]) + step(b, x[1], y[1] + shift), shift

    joined = {(x, y): list(joins(x, y)) for x in costs for y in costs}
    paths: dict[_Order, tuple[int, tuple[tuple[int, _Order], ...]]]
    paths = {x: (own + (D * whole + back) * step(f, x[0], x[1]), ((0, x),)) for x, own in costs.items()}
    for p in range(1, P):
        last, paths = paths, {}
        for y, own in costs.items():
            cost, shift, x = min(
                (cost + near * (p * whole + back) + far * ((D - p) * whole + back), shift, x)
                for x, (cost, _) in last.items()
                for near, far, shift in joined[x, y]
            )
            paths[y] = cost + own, (*last[x][1], (shift, y))
    turns = {x: (P * whole + back) * (step(f, 0, x[0]) + step(b, x[1], x[2])) for x in costs}
    _, path = min((cost + turns[x], path) for x, (cost, path) in paths.items())
    places, shift = [(0, 0, 0)] * D, 0
    for p, (more, x) in enumerate(path):
        shift += more
        far_f, far_b, near_b, far_w, near_w = (shift + begin for begin in x)
        places[p], places[D - 1 - p] = (shift, near_b, near_w), (far_f, far_b, far_w)
    forwards = list(accumulate((F for F, _, _ in places), lambda now, F: now + step(f, now, F)))
    turn = forwards[-1] + f - b
    backwards = accumulate((B for _, B, _ in places[::-1]), lambda now, B: now + step(b, now, B), initial=turn)
    return [(F, B, B + step(b, B, W)) for F, B, (_, _, W) in zip(forwards, list(backwards)[:0:-1], places, strict=True)]
