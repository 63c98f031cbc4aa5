"""Fill and drain: all forwards of a minibatch, then all its backwards."""

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from pipetrain.schedules.alternation import one_forward_one_backward
from pipetrain.schedules.base import Family, ListSchedule
from pipetrain.schedules.operation import Operation


@dataclass(frozen=True)
class GPipe(ListSchedule):
    """F(t,0..N-1), B(t,0..N-1), U(t) (Huang et al. 2019)."""

    name: ClassVar[str] = "gpipe"
    family: ClassVar[Family] = Family.SYNCHRONOUS

    @override
    def in_flight(self, r: int, D: int, N: int) -> int:
        """N on every stage."""
        return N

    @override
    def operations(self, r: int, D: int, N: int, M: int) -> list[Operation]:
        """The same list on every stage; backwards in the order of the forwards, so gradients add up alike for all D."""
        return [op for t in range(M) for op in one_forward_one_backward(N - 1, N, t, 1)]
