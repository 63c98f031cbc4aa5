"""The stages and the executor of a process, put together from what a job says."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from pipetrain.executors.base import Executor
from pipetrain.executors.distributed import DistributedExecutor
from pipetrain.executors.finegrained import FinegrainedExecutor, WholeModel
from pipetrain.executors.phase import Phase
from pipetrain.executors.simulated import SimulatedExecutor
from pipetrain.executors.stage_runner import OnStep
from pipetrain.launch.watchdog import Activity
from pipetrain.losses import on_device
from pipetrain.models.chain import LayerChain
from pipetrain.planner.finegrained import names_of, weight_units
from pipetrain.run.build import build_loss, optimizer_builder
from pipetrain.run.job import Job
from pipetrain.stage.module import StageModule
from pipetrain.stage.stage import Stage, StageSpec
from pipetrain.stage.unit_stage import UnitStage
from pipetrain.tracking.trace_writer import TraceFile


@dataclass(frozen=True)
class Assembly:
    """What every process of a run has in common, and what it builds of it.

    Attributes:
        job: what to build.
        chain: the model, initialised.
        phases: of the run.
        rate: the learning rate of each step.
        device: of this process.
        on_step: told the loss of each minibatch where the last stage is.
        trace: where the operations of a run with `trace=true` are written.
    """

    job: Job
    chain: LayerChain
    phases: Sequence[Phase]
    rate: Callable[[int], float]
    device: torch.device
    on_step: OnStep
    trace: TraceFile | None

    def stages(self, mine: Sequence[int]) -> list[Stage]:
        """The stages with these numbers."""
        optimizer = optimizer_builder(self.job.settings.optimizer, self.rate)
        built = []
        for r in mine:
            loss = build_loss(self.job.settings) if r == self.job.num_stages - 1 else None
            spec = StageSpec(r, self.job.bounds[r], loss, self.job.settings.seed, self.device)
            built.append(Stage(spec, self.chain, optimizer))
        return built

    def in_one_process(self) -> Executor:
        """All stages here: of layers each, or of single weights."""
        if self.job.finegrained:
            return self._finegrained()
        stages = self.stages(range(self.job.num_stages))
        return SimulatedExecutor(stages, self.phases, self._clip_norm, self.on_step, trace=self.trace)

    def among_processes(self, stages: Sequence[Stage], activity: Activity, direct: bool) -> Executor:
        """The stages of this process, connected to those of the others.

        Args:
            stages: of this process.
            activity: told what is computed and what is waited for.
            direct: whether tensors go from device to device, past this process's memory.
        """
        if not self.phases[0].rules.schedule.listed:
            # importing the library's schedules takes a third of a second, which only those who run them shall wait
            from pipetrain.executors.torch_pipelining.executor import TorchPipeliningExecutor

            return TorchPipeliningExecutor(
                list(stages),
                self.phases,
                self.job.placement,
                self._clip_norm,
                self.on_step,
                activity.compute,
                activity.wait,
                direct,
            )
        return DistributedExecutor(
            stages[0],
            self.phases,
            self._clip_norm,
            self.on_step,
            lambda op: activity.now(str(op)),
            activity.wait,
            direct,
            self.trace,
        )

    @property
    def _clip_norm(self) -> float | None:
        return self.job.settings.optimizer.clip_norm

    def _finegrained(self) -> FinegrainedExecutor:
        settings = self.job.settings
        units = weight_units(self.chain)
        module = StageModule(self.chain.layers, 0, settings.seed).to(self.device)
        optimizer = optimizer_builder(settings.optimizer, self.rate)
        stages = [
            UnitStage(r, names_of(units[first:last]), module, optimizer, self.device)
            for r, (first, last) in enumerate(self.job.bounds)
        ]
        segments = settings.train.recompute_boundaries
        loss = on_device(build_loss(settings), self.device)
        model = WholeModel(module, loss, None if segments is None else tuple(segments))
        return FinegrainedExecutor(stages, model, self.phases, self._clip_norm, self.on_step)
