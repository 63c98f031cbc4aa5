"""N forwards, one backward: the schedule of TiMePReSt."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from pipetrain.schedules.base import Family, ListSchedule
from pipetrain.schedules.operation import Operation, backward, forward, update
from pipetrain.schedules.round_robin import UnevenReplicas


@dataclass(frozen=True)
class NF1B(ListSchedule, UnevenReplicas):
    """As 1F1B with F(t,0) .. F(t,N-1) in F's place and one backward of the whole minibatch (TiMePReSt § 3).

    Each forward is sent on as soon as it is done; the gradient of a minibatch is one message.
    """

    name: ClassVar[str] = "nf1b"
    family: ClassVar[Family] = Family.WHOLE_BACKWARD

    @override
    def in_flight(self, r: int, D: int, N: int) -> int:
        """D - r minibatches."""
        return (D - r) * N

    @override
    def newest_at_forward(self, r: int, D: int, N: int, t: int, j: int) -> int:
        """max(0, t - (D-1-r)), the same for every microbatch."""
        return max(0, t - self.delay(r, D, N))

    @override
    def delay(self, r: int, D: int, N: int) -> int:
        """D - 1 - r: one update for each minibatch that a later stage holds."""
        return D - 1 - r

    @override
    def recompute_room(self, r: int, D: int, N: int) -> float:
        """0: a minibatch goes backward as a whole, and is recomputed just before."""
        return 0

    @override
    def operations(self, r: int, D: int, N: int, M: int) -> list[Operation]:
        """Warm-up of D-1-r minibatches, then a minibatch forward and one back in turn, then the drain."""
        return list(self._operations(self.delay(r, D, N), N, M))

    @override
    def steady_cycle(self, r: int, D: int, N: int) -> list[Operation]:
        ahead = self.delay(r, D, N)
        return [*(forward(ahead, j) for j in range(N)), backward(0, None), update(0)]

    @override
    def warmup_minibatches(self, behind: int, replicas: int) -> int:
        """floor((W - 1) / R), as 1F1B."""
        return behind // replicas

    @override
    def in_flight_with(self, warmup: int, N: int) -> int:
        return (warmup + 1) * N

    @override
    def operations_with(self, warmup: int, N: int, M: int) -> list[Operation]:
        return list(self._operations(warmup, N, M))

    @staticmethod
    def _operations(warm_up: int, N: int, M: int) -> Iterator[Operation]:
        for t in range(M + warm_up):
            if t < M:
                yield from (forward(t, j) for j in range(N))
            if t >= warm_up:
                yield backward(t - warm_up, None)
                yield update(t - warm_up)
