"""Synchronous schedules that torch.distributed.pipelining executes: their names and conditions."""

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from pipetrain.errors import ConfigError
from pipetrain.schedules.base import Family, Schedule
from pipetrain.schedules.placement import Placement


class TorchSchedule(Schedule):
    """A schedule without operation lists here; several stages live in each process.

    Attributes:
        library_name: its name for torch.distributed.pipelining.schedules.get_schedule_class.
        splits_backward: True if some backwards compute the gradients of inputs first, and those of weights later.
    """

    family: ClassVar[Family] = Family.SYNCHRONOUS
    library_name: ClassVar[str]
    splits_backward: ClassVar[bool] = True
    stages_per_rank: int

    @override
    def check(self, D: int, N: int) -> None:
        if self.stages_per_rank < 2:
            raise ConfigError(
                f"schedule.stages_per_rank={self.stages_per_rank}: at least 2; with one stage in each process "
                "schedule=1f1b_flush does the same"
            )
        if D % self.stages_per_rank:
            near = {max(1, D // self.stages_per_rank + more) * self.stages_per_rank for more in (0, 1)}
            raise ConfigError(
                f"partition.stages={D}: schedule={self.name} places {self.stages_per_rank} stages in each process; "
                f"partition.stages={' or '.join(map(str, sorted(near)))} works"
            )

    @override
    def delay(self, r: int, D: int, N: int) -> int:
        return 0


@dataclass(frozen=True)
class Interleaved(TorchSchedule):
    """Stage r in process r mod P: the first stage of each process, then the second of each, and so on."""

    stages_per_rank: int = 2

    @override
    def placement(self, D: int) -> Placement:
        processes = D // self.stages_per_rank
        return Placement(tuple(tuple(range(p, D, processes)) for p in range(processes)))

    @override
    def check(self, D: int, N: int) -> None:
        """The library takes microbatches in max(1, N // P) rounds of equal size."""
        super().check(D, N)
        processes = D // self.stages_per_rank
        if N % max(1, N // processes):
            raise ConfigError(
                f"train.microbatches={N}: schedule={self.name} on {processes} processes takes fewer than "
                f"{2 * processes}, or a multiple of {processes} such as {N // processes * processes} or "
                f"{(N // processes + 1) * processes}"
            )


@dataclass(frozen=True)
class Interleaved1F1B(Interleaved):
    """Narayanan et al. 2021, *Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM*."""

    name: ClassVar[str] = "torch_interleaved_1f1b"
    library_name: ClassVar[str] = "Interleaved1F1B"
    splits_backward: ClassVar[bool] = False


@dataclass(frozen=True)
class InterleavedZeroBubble(Interleaved):
    """ZB1P of Qi et al. 2023, *Zero Bubble Pipeline Parallelism*: gradients of weights fill the bubbles."""

    name: ClassVar[str] = "torch_interleaved_zero_bubble"
    library_name: ClassVar[str] = "InterleavedZeroBubble"


class _V(TorchSchedule):
    """Stages p and D - 1 - p in process p: a microbatch passes every process twice, in a V."""

    stages_per_rank: int = 2

    @override
    def placement(self, D: int) -> Placement:
        return Placement(tuple((p, D - 1 - p) for p in range(D // 2)))


@dataclass(frozen=True)
class ZBVZeroBubble(_V):
    """ZB-V of Qi et al. 2023, § 6."""

    name: ClassVar[str] = "torch_zbv_zero_bubble"
    library_name: ClassVar[str] = "ZBVZeroBubble"


@dataclass(frozen=True)
class DualPipeV(_V):
    """DualPipeV: DualPipe (DeepSeek-V3, 2024) folded so that every process has two stages."""

    name: ClassVar[str] = "torch_dualpipev"
    library_name: ClassVar[str] = "DualPipeV"

    @override
    def check(self, D: int, N: int) -> None:
        super().check(D, N)
        if N < D:
            raise ConfigError(
                f"train.microbatches={N} with partition.stages={D}: schedule={self.name} needs at least as many "
                f"microbatches as stages; train.microbatches={D} works"
            )
