"""Microbatch-level 1F1B that is never flushed and makes a version every N >= D microbatches: PipeDream-2BW."""

from dataclasses import dataclass
from typing import ClassVar

from pipetrain.errors import ConfigError
from pipetrain.schedules.base import Family, Schedule, one_forward_one_backward
from pipetrain.schedules.operation import Operation


@dataclass(frozen=True)
class OneFOneB2BW(Schedule):
    """1F1B over microbatches; N >= D, so that two weight versions serve all microbatches in flight (PipeDream-2BW)."""

    name: ClassVar[str] = "1f1b_2bw"
    family: ClassVar[Family] = Family.DOUBLE_BUFFERED

    def check(self, D: int, N: int) -> None:
        """N must not be below D."""
        if N < D:
            raise ConfigError(
                f"train.microbatches={N} with partition.stages={D}: schedule=1f1b_2bw needs at least as many "
                f"microbatches as stages, train.microbatches={D} or more"
            )

    def in_flight(self, r: int, D: int, N: int) -> int:
        """D - r microbatches."""
        return D - r

    def delay(self, r: int, D: int, N: int) -> int:
        """1 on every stage: minibatch t reads the version before the one that its gradient changes."""
        return 1

    def operations(self, r: int, D: int, N: int, M: int) -> list[Operation]:
        """One warm-up, one steady state, one drain for all M minibatches."""
        return list(one_forward_one_backward(D - 1 - r, N, 0, M))
