"""What a trainer asks of an executor, wherever the stages are."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import torch.distributed as dist

from pipetrain.data.loader import Loader
from pipetrain.executors.clipping import Clipping
from pipetrain.executors.drain_interval import DrainInterval
from pipetrain.executors.phase import Phase, PipelineRules
from pipetrain.executors.stage_runner import OnStep
from pipetrain.schedules import Placement
from pipetrain.stage.base import BaseStage
from pipetrain.tracking.trace_writer import TraceFile

Waiting = Callable[[str], AbstractContextManager[None]]
"""A context around a wait for another process, given what is waited for."""


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
            fresh = interval.start == phase.start
            # a phase that predicts finds the last gradients of the phase before it
            predicts = any(each.rules.method.needs_prediction for each in self._phases[interval.phase :])
            for stage in self.stages:
                context = phase.rules.contexts[stage.index]
                stage.enter(phase.rules.method, context, phase.start, fresh=fresh, predicts=predicts)
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
