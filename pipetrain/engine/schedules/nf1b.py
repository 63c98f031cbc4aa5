"""N forwards, one backward: the schedule of TiMePReSt."""

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from pipetrain.engine.schedules.alternation import ContinuousOneFOneB
from pipetrain.engine.schedules.base import Family
from pipetrain.engine.schedules.operation import Operation, backward, forward, update
from pipetrain.engine.schedules.round_robin import UnevenReplicas


@dataclass(frozen=True)
class NF1B(ContinuousOneFOneB, UnevenReplicas):
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
    def steady_cycle(self, r: int, D: int, N: int) -> list[Operation]:
        ahead = self.delay(r, D, N)
        return [*(forward(ahead, j) for j in range(N)), backward(0, None), update(0)]

    @override
    def uneven_in_flight(self, behind: int, replicas: int, N: int) -> int:
        """floor((W - 1) / R) + 1 minibatches, as 1F1B."""
        return (behind // replicas + 1) * N

    @override
    def operations_in_flight(self, in_flight: int, N: int, M: int) -> list[Operation]:
        """A warm-up, then the forwards of a minibatch and a backward in turn, then the drain.

        With D = 3, N = 2, M = 3 and in_flight = (D - r)·N (an update follows each backward)::

            stage 0  F0.0 F0.1 F1.0 F1.1 F2.0 F2.1  B0   .    .    B1   .    .    B2
            stage 1   .   F0.0 F0.1 F1.0 F1.1  B0  F2.0 F2.1  B1   .    .    B2
            stage 2   .    .   F0.0 F0.1  B0  F1.0 F1.1  B1  F2.0 F2.1  B2
        """
        warm_up, operations = in_flight // N - 1, list[Operation]()
        for t in range(M + warm_up):
            if t < M:
                operations += (forward(t, j) for j in range(N))
            if t >= warm_up:
                operations += backward(t - warm_up, None), update(t - warm_up)
        return operations
