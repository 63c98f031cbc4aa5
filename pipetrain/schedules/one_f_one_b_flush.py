"""One forward, one backward, flushed at every minibatch: GPipe's numbers with fewer activations held."""

from dataclasses import dataclass
from typing import ClassVar

from pipetrain.schedules.base import Family, Schedule, one_forward_one_backward
from pipetrain.schedules.operation import Operation


@dataclass(frozen=True)
class OneFOneBFlush(Schedule):
    """min(N, D-1-r) forwards, then F and B in turn, drain, U(t) (PipeDream-Flush; DAPPLE)."""

    name: ClassVar[str] = "1f1b_flush"
    family: ClassVar[Family] = Family.SYNCHRONOUS

    def in_flight(self, r: int, D: int, N: int) -> int:
        """min(N, D - r)."""
        return min(N, D - r)

    def operations(self, r: int, D: int, N: int, M: int) -> list[Operation]:
        """Warm-up, steady state and drain, once per minibatch."""
        warm_up = self.in_flight(r, D, N) - 1
        return [op for t in range(M) for op in one_forward_one_backward(warm_up, N, t, 1)]
