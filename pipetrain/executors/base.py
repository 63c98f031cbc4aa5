"""What a trainer asks of an executor, wherever the stages are."""

import itertools
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from pipetrain.data.loader import Loader
from pipetrain.executors.phase import Phase, PipelineRules
from pipetrain.executors.stage_runner import Clipping, OnStep
from pipetrain.losses import Loss, count_of, hits_of, percent
from pipetrain.schedules import Placement
from pipetrain.stage.base import BaseStage
from pipetrain.tensors import Tensors
from pipetrain.tracking.trace_writer import TraceFile

Waiting = Callable[[str], AbstractContextManager[None]]
"""A context around a wait for another process, given what is waited for."""


@dataclass(frozen=True)
class DrainInterval:
    """Consecutive minibatches of one epoch, between two drains.

    Attributes:
        epoch: from 0.
        first, last: minibatches of the epoch, the last exclusive.
        start: minibatches of the run before `first`.
        phase: the number of the phase that it is of.
    """

    epoch: int
    first: int
    last: int
    start: int
    phase: int = 0

    @property
    def minibatches(self) -> int:
        """How many."""
        return self.last - self.first


class Executor(ABC):
    """Trains and evaluates the stages that live in this process, and talks to those that do not."""

    stages: Sequence[BaseStage]
    """The stages of this process, in order."""
    unmeasured: ClassVar[tuple[str, ...]] = ()
    """Fields of a stage's report that cannot be known here."""

    def __init__(
        self, phases: Sequence[Phase], clip_norm: float | None, on_step: OnStep, trace: TraceFile | None = None
    ) -> None:
        self._phases = phases
        self._clip_norm = clip_norm
        self._entered: int | None = None
        self.total_stages = phases[0].rules.num_stages
        self.on_step = on_step
        self.trace = trace

    def enter(self, interval: DrainInterval) -> PipelineRules:
        """The rules of the interval's phase, which its stages now follow."""
        phase = self._phases[interval.phase]
        if interval.phase != self._entered:
            self._entered = interval.phase
            for stage in self.stages:
                place = phase.rules.contexts[stage.index]
                stage.enter(phase.rules.method, place, phase.start, fresh=interval.start == phase.start)
        return phase.rules

    def clipping(self, rules: PipelineRules) -> Clipping | None:
        """How gradients are clipped under these rules."""
        return Clipping(self._clip_norm, rules.schedule.synchronous) if self._clip_norm is not None else None

    @property
    def has_last_stage(self) -> bool:
        """Whether losses and metrics are known here."""
        return self.stages[-1].index == self.total_stages - 1

    @abstractmethod
    def train(self, loader: Loader, interval: DrainInterval) -> Sequence[float | None]:
        """Carries out the interval; the idle share of each stage of this process in it, where stages run at all."""

    @abstractmethod
    def evaluate(self, loader: Loader) -> dict[str, float] | None:
        """Metrics over the whole evaluation set where the last stage is, None elsewhere."""

    @abstractmethod
    def gather(self, values: Sequence[Any]) -> list[Any]:
        """One value for each stage of this process -> those of all stages, in every process."""

    @abstractmethod
    def agree(self, value: Any) -> Any:
        """The value that the process of the last stage gives, in every process."""


class OneProcess(Executor):
    """All stages are in this process."""

    def gather(self, values: Sequence[Any]) -> list[Any]:
        """The values themselves."""
        return list(values)

    def agree(self, value: Any) -> Any:
        """The value itself."""
        return value


class ManyProcesses(Executor):
    """Each process has its stages; torch.distributed's default group is for control.

    Args:
        placement: of all stages.
        waiting: a context around every wait for another process.
    """

    def __init__(
        self,
        phases: Sequence[Phase],
        placement: Placement,
        waiting: Waiting,
        clip_norm: float | None,
        on_step: OnStep,
        trace: TraceFile | None = None,
    ) -> None:
        super().__init__(phases, clip_norm, on_step, trace)
        self._placement = placement
        self._waiting = waiting

    def gather(self, values: Sequence[Any]) -> list[Any]:
        """All stages' values, over the control group."""
        gathered: list[Any] = [None] * self._placement.num_processes
        with self._waiting("the reports of all stages"):
            dist.all_gather_object(gathered, list(values))
        return self._placement.in_order(gathered)

    def agree(self, value: Any) -> Any:
        """The value of the last stage's process, over the control group."""
        box = [value]
        with self._waiting("the decision of the last stage"):
            dist.broadcast_object_list(box, src=self._placement.of_last_stage)
        return box[0]


class Score:
    """Loss and metrics summed over an evaluation set, exact whatever the sizes of its microbatches."""

    def __init__(self, loss: Loss) -> None:
        self._loss = loss
        self._count = 0
        self._sum = 0.0
        self._hits: dict[str, float] = {}

    @torch.no_grad()
    def add(self, outputs: Tensors, targets: Tensors) -> None:
        """One microbatch."""
        count = count_of(self._loss, targets)
        self._count += count
        self._sum += self._loss(*outputs, *targets).item() * count
        for name, hits in hits_of(self._loss, outputs, targets).items():
            self._hits[name] = self._hits.get(name, 0.0) + hits.item()

    def metrics(self) -> dict[str, float]:
        """`loss`, and each metric of the loss in percent."""
        return {
            "loss": self._sum / self._count,
            **{name: percent(hits, self._count) for name, hits in self._hits.items()},
        }


class LoaderFeed:
    """An interval's minibatches on the device of the stage that asks for them."""

    def __init__(
        self, loader: Loader, interval: DrainInterval, device: torch.device, inputs: bool, targets: bool
    ) -> None:
        place = interval.epoch, interval.first, interval.last
        self._device = device
        self._sides: list[deque[Tensors]] = [deque(), deque()]
        self._asked = [side for side, asked in enumerate((inputs, targets)) if asked]
        self._minibatches: Iterator[tuple[Tensors, ...]] = iter(())
        if inputs and targets:
            self._minibatches = loader.samples(*place)
        elif inputs or targets:
            self._minibatches = zip(loader.inputs(*place) if inputs else loader.targets(*place))

    def prepare(self) -> None:
        """Reads the next minibatch ahead, if there is one and all that was read has been taken.

        For a moment at which the stage would wait for another anyway.
        """
        if not any(self._sides):
            self._read()

    def inputs(self) -> Tensors:
        """The next minibatch's inputs."""
        return self._take(0)

    def targets(self) -> Tensors:
        """The next minibatch's targets."""
        return self._take(1)

    def _take(self, side: int) -> Tensors:
        if not self._sides[side]:
            self._read()
        return to_device(self._sides[side].popleft(), self._device)

    def _read(self) -> None:
        for minibatch in itertools.islice(self._minibatches, 1):
            for side, tensors in zip(self._asked, minibatch, strict=True):
                self._sides[side].append(tensors)


def to_device(tensors: Tensors, device: torch.device) -> Tensors:
    """The tensors on `device`; copies from the host do not wait."""
    return tuple(tensor.to(device, non_blocking=True) for tensor in tensors)
