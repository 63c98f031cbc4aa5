"""Synchronous schedules that torch.distributed.pipelining executes: their names and conditions."""

from dataclasses import dataclass
from typing import Any, ClassVar

from typing_extensions import override

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.schedules.base import Family, Schedule
from pipetrain.engine.schedules.placement import Placement, check_divides


class TorchSchedule(Schedule):
    """A schedule without operation lists here; several stages live in each process.

    Attributes:
        library_name: its name for torch.distributed.pipelining.schedules.get_schedule_class.
        splits_backward: True if some backwards compute the gradients of inputs first, and of weights later.
    """

    family: ClassVar[Family] = Family.SYNCHRONOUS
    executor: ClassVar[str | None] = "pipetrain.plugins.torch_schedules.executor.TorchPipeliningExecutor"
    library_name: ClassVar[str]
    splits_backward: ClassVar[bool] = True
    chunks: int

    @override
    def check(self, D: int, N: int) -> None:
        if self.chunks < 2:
            raise ConfigError(
                f"schedule.chunks={self.chunks}: at least 2; with one stage in each process "
                "schedule=1f1b_flush does the same"
            )
        check_divides(self.name, D, self.chunks)

    @override
    def delay(self, r: int, D: int, N: int) -> int:
        return 0

    @override
    def check_run(self, settings: Any, loader: Any) -> None:
        train, name = settings.train, f"schedule={self.name}"
        library = "is run by torch.distributed.pipelining"
        if settings.executor.simulated:
            raise ConfigError(
                f"executor=simulated: {name} {library}, between processes; use executor=distributed, or "
                "schedule=gpipe, which computes the same"
            )
        if settings.trace:
            raise ConfigError(f"trace=true: {name} {library}, which does not show its operations; leave trace out")
        if train.recompute or train.recompute_boundaries is not None:
            raise ConfigError(f"train.recompute: {name} {library}, which keeps all activations; leave it out")
        if loader.varying:
            raise ConfigError(
                f"{name} {library}, which takes minibatches of one shape only, and those of "
                f"{type(loader.dataset).__name__} vary; schedule=1f1b_flush takes them"
            )
        if uneven := [size for size in loader.sizes(0) if size % train.microbatches]:
            raise ConfigError(
                f"train.microbatches={train.microbatches}: the last minibatch of an epoch has {uneven[0]} samples, and "
                f"{name} takes microbatches of equal size only; set dataset.limit to a "
                f"multiple of {train.microbatches}"
            )

    @override
    def notes(self, D: int) -> list[str]:
        import torch  # takes a second, which those who list schedules shall not wait

        placement = self.placement(D)
        processes = ", ".join(placement.name(process) for process in range(placement.num_processes))
        notes = [f"{placement.num_processes} process{'es' * (placement.num_processes > 1)}: {processes}"]
        if self.splits_backward and torch.__version__ < "2.13":
            notes.append(
                f"warning: schedule={self.name} splits the backward pass, and torch {torch.__version__} then computes "
                "wrong gradients for layers that use a weight twice; upgrade to torch 2.13"
            )
        return notes


@dataclass(frozen=True)
class Interleaved(TorchSchedule):
    """Stage r in process r mod P: the first stage of each process, then the second of each, and so on."""

    chunks: int = 2

    @override
    def placement(self, D: int) -> Placement:
        return Placement.looped(D, self.chunks)

    @override
    def check(self, D: int, N: int) -> None:
        """The library takes microbatches in max(1, N // P) rounds of equal size."""
        super().check(D, N)
        processes = D // self.chunks
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

    chunks: int = 2

    @override
    def placement(self, D: int) -> Placement:
        return Placement.v_shaped(D)


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
                f"train.microbatches={N} with partition.stages={D}: schedule={self.name} needs at least one "
                f"microbatch per stage; train.microbatches={D} works"
            )
