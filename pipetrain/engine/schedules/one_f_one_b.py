"""One forward, one backward: flushed at every minibatch, never flushed, or with two weight versions."""

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from pipetrain.engine.errors import ConfigError, check_whole
from pipetrain.engine.schedules.alternation import ContinuousOneFOneB, DrainedOneFOneB
from pipetrain.engine.schedules.base import Family
from pipetrain.engine.schedules.round_robin import UnevenReplicas


@dataclass(frozen=True)
class OneFOneBFlush(DrainedOneFOneB):
    """min(N, D-1-r) forwards, then F and B in turn, drain, U(t) (PipeDream-Flush; DAPPLE)."""

    name: ClassVar[str] = "1f1b_flush"

    @override
    def in_flight(self, r: int, D: int, N: int) -> int:
        return min(N, D - r)


@dataclass(frozen=True)
class OneFOneB(ContinuousOneFOneB, UnevenReplicas):
    """Warm-up, then F, B (and U after every N-th B) in turn, with no flush between minibatches (PipeDream § 3.2).

    Attributes:
        depth: K, the microbatches that each replica of stage 0 admits (PipeDream fig. 18, where N = 1); D when null.
            Below D fewer are held, above D more, so that communication hides; the last stage never goes stale.
    """

    name: ClassVar[str] = "1f1b"
    family: ClassVar[Family] = Family.CONTINUOUS
    depth: int | None = None

    def __post_init__(self) -> None:
        if self.depth is not None:
            check_whole("schedule.depth", self.depth, least=1, otherwise="or null for one per stage")

    @override
    def in_flight(self, r: int, D: int, N: int) -> int:
        """1 + floor((K-1)(D-1-r)/(D-1)): D - r where K = D."""
        depth = D if self.depth is None else self.depth
        return 1 + (depth - 1) * (D - 1 - r) // (D - 1) if D > 1 else 1

    @override
    def uneven_in_flight(self, behind: int, replicas: int, N: int) -> int:
        """floor((W - 1) / R) minibatches and 1: the first stage admits ceil(W / R) per replica (PipeDream § 3.2)."""
        if self.depth is not None:
            raise ConfigError(
                f"schedule.depth={self.depth}: has no effect with unequal replica counts, under which the first stage "
                "admits one minibatch per worker; set schedule.depth=null, or equal counts"
            )
        return behind // replicas * N + 1


@dataclass(frozen=True)
class OneFOneB2BW(ContinuousOneFOneB):
    """1F1B over microbatches; N >= D, so that two weight versions serve all microbatches in flight (PipeDream-2BW)."""

    name: ClassVar[str] = "1f1b_2bw"
    family: ClassVar[Family] = Family.DOUBLE_BUFFERED

    @override
    def check(self, D: int, N: int) -> None:
        if N < D:
            raise ConfigError(
                f"train.microbatches={N} with partition.stages={D}: schedule=1f1b_2bw needs at least one "
                f"microbatch per stage; train.microbatches={D} or more works"
            )

    @override
    def in_flight(self, r: int, D: int, N: int) -> int:
        return D - r

    @override
    def delay(self, r: int, D: int, N: int) -> int:
        """1 on every stage: minibatch t reads the version before the one that its gradient changes."""
        return 1
