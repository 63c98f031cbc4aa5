"""1F1B of split backwards on two stages per process, in a V: never flushed, with fewer microbatches in flight."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from pipetrain.engine.schedules.base import Family
from pipetrain.engine.schedules.operation import Kind, backward, forward, update, weight_gradient
from pipetrain.engine.schedules.process_lists import StageOperation, VShaped

PERIOD = 6
"""Units of time in which a process does an F, B and W of one unit each on both of its stages."""


@dataclass(frozen=True)
class OneFOneBV(VShaped):
    """Process p has stages p and D - 1 - p; each does an F, a B and a W in every six units, with no flush.

    A microbatch comes back to stage 0 after 2D + 2 units at most, so D/3 are in flight there: two in three of those
    under 1F1B on the same number of processes (V-Min of Qi et al. 2024, *Pipeline Parallelism with Controllable
    Memory*, without its flush).
    """

    name: ClassVar[str] = "1f1b_v"
    family: ClassVar[Family] = Family.CONTINUOUS
    splits_backward: ClassVar[bool] = True

    @override
    def in_flight(self, r: int, D: int, N: int) -> int:
        """The periods from F to B, rounded up: ceil((2D - 1 - 2r) / 6), two units more if 3 divides D."""
        f, b, _ = _times(r, D)
        return -((f - b) // PERIOD)

    @override
    def of_process(self, p: int, D: int, N: int, M: int) -> Iterator[StageOperation]:
        """Operations in the order of their times; an update follows the last W of each minibatch.

        With D = 4, N = 1 and M = 4 (F1 is F1.0; capitals: stages 2 and 3)::

            stages 0 and 3  f0 .  .  F0 B0 W0 f1 b0 w0 F1 B1 W1 f2 b1 w1 F2 B2 W2 f3 b2 w2 F3 B3 W3 .  b3 w3
            stages 1 and 2  .  f0 F0 .  .  B0 b0 f1 F1 W0 w0 B1 b1 f2 F2 W1 w1 B2 b2 f3 F3 W2 w2 B3 b3 W3 w3
        """
        timed = (
            (time + PERIOD * k, stage, operation(*divmod(k, N)))
            for stage in self.placement(D).stages_of[p]
            for operation, time in zip((forward, backward, weight_gradient), _times(stage, D), strict=True)
            for k in range(M * N)
        )
        for _, stage, op in sorted(timed, key=lambda entry: entry[0]):
            yield stage, op
            if op.kind is Kind.WEIGHT_GRADIENT and op.microbatch == N - 1:
                yield stage, update(op.minibatch)

    @override
    def newest_at_forward(self, r: int, D: int, N: int, t: int, j: int) -> int:
        """max(0, floor((tN + j - d) / N)), where d + 1 forwards begin before the first W."""
        return max(0, (t * N + j - _ahead(r, D)) // N)

    @override
    def delay(self, r: int, D: int, N: int) -> int:
        return -(-_ahead(r, D) // N)


def _ahead(r: int, D: int) -> int:
    """Whole periods from F to W of a microbatch."""
    f, _, w = _times(r, D)
    return (w - f) // PERIOD


def _times(r: int, D: int) -> tuple[int, int, int]:
    """Start of F, B and W of microbatch 0 on stage r; those of microbatch k are k periods later.

    F and B go from stage to stage without a wait, except for two units before the first B if 3 divides D, as those of a
    process would coincide. W follows B by 1, 2 or 4 units, the first of these at which both stages of the process find
    it idle.
    """
    pair = [(s, 2 * D - 1 - s + (2 if D % 3 == 0 else 0)) for s in (r, D - 1 - r)]
    taken = {time % PERIOD for times in pair for time in times}
    lag = next(lag for lag in (1, 2, 4) if not taken & {(b + lag) % PERIOD for _, b in pair})
    f, b = pair[0]
    return f, b, b + lag
