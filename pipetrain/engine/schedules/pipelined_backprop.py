"""One forward and one backward on every stage in every cycle: the delays of stale-weight training and of PipeMare."""

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from pipetrain.engine.schedules.alternation import ContinuousOneFOneB
from pipetrain.engine.schedules.base import Family
from pipetrain.engine.schedules.round_robin import UnevenReplicas


@dataclass(frozen=True)
class PipelinedBackprop(ContinuousOneFOneB, UnevenReplicas):
    """Every cycle one F and one B, so a microbatch comes back to stage r after 2(D-1-r) cycles.

    Zhang & Abdelrahman, § 4.1: their K register pairs are K + 1 = D stages.
    """

    name: ClassVar[str] = "pipelined_backprop"
    family: ClassVar[Family] = Family.CONTINUOUS

    @override
    def in_flight(self, r: int, D: int, N: int) -> int:
        return 2 * (D - 1 - r) + 1

    @override
    def uneven_in_flight(self, behind: int, replicas: int, N: int) -> int:
        """2 floor((W - 1) / R) minibatches, twice the value of 1F1B, and 1."""
        return 2 * (behind // replicas) * N + 1


@dataclass(frozen=True)
class PipeMareSchedule(PipelinedBackprop):
    """As pipelined backpropagation, one more in flight: the delay of PipeMare's table 1, 2(P-i) + 1 with i = r + 1."""

    name: ClassVar[str] = "pipemare"

    @override
    def in_flight(self, r: int, D: int, N: int) -> int:
        """2(D-1-r) + 2 microbatches."""
        return super().in_flight(r, D, N) + 1

    @override
    def uneven_in_flight(self, behind: int, replicas: int, N: int) -> int:
        """floor((2(W - 1) + 1) / R) minibatches, and 1."""
        return (2 * behind + 1) // replicas * N + 1
