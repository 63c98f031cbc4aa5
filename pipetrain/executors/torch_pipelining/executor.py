"""The stages of this process under a schedule of torch.distributed.pipelining, which that library carries out."""

from collections.abc import Sequence
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from pipetrain.data.loader import Loader
from pipetrain.data.microbatches import split
from pipetrain.executors.base import ManyProcesses, Waiting
from pipetrain.executors.clipping import clipped, squared_norm
from pipetrain.executors.drain_interval import DrainInterval
from pipetrain.executors.evaluation import Score
from pipetrain.executors.feed import LoaderFeed
from pipetrain.executors.p2p import NEVER
from pipetrain.executors.phase import Phase, PipelineRules
from pipetrain.executors.stage_runner import OnStep
from pipetrain.executors.torch_pipelining.pipe import Pipe, Shapes
from pipetrain.executors.torch_pipelining.relay import Relay
from pipetrain.executors.torch_pipelining.stage_adapter import Computing
from pipetrain.schedules import Placement
from pipetrain.schedules.torch_library import TorchSchedule
from pipetrain.stage.stage import Stage
from pipetrain.tensors import Tensors


class TorchPipeliningExecutor(ManyProcesses):
    """Hands the stages of this process to the library, a minibatch at a time; updates and evaluations are ours.

    Neither when an operation runs nor which activations live is the library's to tell, so that idle shares and
    activation bytes stay unknown.

    Args:
        placement: of all stages.
        computing: a context around each forward.
        waiting: a context around what may wait for another process.
        direct: whether activations and gradients go over NCCL from device to device.
    """

    unmeasured: ClassVar[tuple[str, ...]] = ("activation_bytes_peak",)

    def __init__(
        self,
        stages: Sequence[Stage],
        phases: Sequence[Phase],
        placement: Placement,
        clip_norm: float | None,
        on_step: OnStep,
        computing: Computing,
        waiting: Waiting,
        direct: bool,
    ) -> None:
        super().__init__(phases, placement, waiting, clip_norm, on_step)
        self.stages = stages
        self._mine = stages
        self._computing = computing
        # every process makes all groups, in one order, as torch requires
        self._passage = Relay(stages, placement, stages[0].device, waiting)
        self._group = dist.new_group(timeout=NEVER, backend="nccl" if direct else "gloo")
        self._pipes: dict[tuple[str, int], Pipe] = {}
        schedules = [phase.rules.schedule for phase in phases]
        if any(isinstance(schedule, TorchSchedule) and schedule.splits_backward for schedule in schedules):
            for stage in stages:
                _separate_gradients(stage)

    # -- training ------------------------------------------------------------------------------------------------

    def train(self, loader: Loader, interval: DrainInterval) -> list[None]:
        """Carries out the interval; the idle shares are not known."""
        rules = self.enter(interval)
        feed = self._feed(loader, interval)
        for t, size in enumerate(loader.sizes[interval.first : interval.last], start=interval.start):
            inputs = feed.inputs() if self._mine[0].index == 0 else ()
            targets = split(feed.targets(), rules.num_microbatches) if self.has_last_stage else []
            pipe = self._pipe(rules, size // rules.num_microbatches, inputs)
            with self._waiting(f"the other processes' part of minibatch {t}"):
                loss = pipe.step(t, inputs, targets)
            self._update(rules, t)
            if loss is not None:
                self.on_step(t, loss)
        return [None] * len(self._mine)

    def _feed(self, loader: Loader, interval: DrainInterval) -> LoaderFeed:
        return LoaderFeed(
            loader, interval, self._mine[0].device, inputs=self._mine[0].index == 0, targets=self.has_last_stage
        )

    def _pipe(self, rules: PipelineRules, samples: int, inputs: Tensors) -> Pipe:
        """The library's objects for microbatches of so many samples, which its buffers are made for."""
        schedule = rules.schedule
        assert isinstance(schedule, TorchSchedule)
        key = schedule.library_name, samples
        if key not in self._pipes:
            self._pipes[key] = Pipe(
                schedule,
                rules.num_microbatches,
                self._mine,
                self.total_stages,
                self._shapes(samples, inputs),
                self._mine[-1].loss,
                self._group,
                self._computing,
            )
        return self._pipes[key]

    def _shapes(self, samples: int, inputs: Tensors) -> dict[int, Shapes]:
        """Those of a microbatch at each stage of this process, found by passing the first one through all stages."""
        found: dict[int, Shapes] = {}

        def forward(stage: Stage, tensors: Tensors) -> Tensors:
            copies = tuple(tensor.clone() for tensor in tensors)  # a first layer may work in place
            with stage.module.spare_buffers(), torch.no_grad():
                outputs: Tensors = stage.module(*copies, microbatch=(0, 0))
            last = stage.index == self.total_stages - 1
            found[stage.index] = Shapes.of(tensors, outputs, stage.index == 0, last)
            return outputs

        self._passage.carry(("shapes", samples), lambda: tuple(tensor[:samples] for tensor in inputs), forward)
        self._passage.end()
        return found

    def _update(self, rules: PipelineRules, t: int) -> None:
        """U on each stage; nothing has changed its weights since the forwards, which is what the audit is told."""
        found = [_taken_gradients(stage) for stage in self._mine]
        for stage, gradients in zip(self._mine, self._clipped(rules, found), strict=True):
            stage.measurements.backward[t] = [stage.updates] * rules.num_microbatches
            stage.update(t, gradients, keep=False, steady=True)

    def _clipped(self, rules: PipelineRules, found: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
        clipping = self.clipping(rules)
        if clipping is None:
            return found
        norms = [torch.tensor(norm) for norm in self.gather([squared_norm(each).item() for each in found])]
        return [clipped(each, norms, clipping.limit) for each in found]

    # -- evaluation ------------------------------------------------------------------------------------------------

    def evaluate(self, loader: Loader) -> dict[str, float] | None:
        """Forward only, one stage after the other; metrics where the last stage is."""
        feed = self._feed(loader, DrainInterval(epoch=0, first=0, last=len(loader), start=0))
        loss = self._mine[-1].loss
        score = Score(loss) if loss is not None else None
        for size in loader.sizes:
            outputs = self._passage.carry(
                ("evaluation", size), feed.inputs, lambda stage, tensors: stage.evaluate(tensors)
            )
            if score is not None and outputs is not None:
                score.add(outputs, feed.targets())
        self._passage.end()
        return score.metrics() if score is not None else None


def _separate_gradients(stage: Stage) -> None:
    """Gives each parameter a gradient of its own: autograd returns one tensor for both weights of a sum.

    Where the library takes the gradients of weights by themselves, it adds those of later microbatches in place, and
    would add to such a tensor once for each weight.
    """
    for parameter in stage.optimizer.parameters.values():
        parameter.register_hook(torch.clone)


def _taken_gradients(stage: Stage) -> dict[str, Tensor]:
    """The gradients that the library left in the stage's parameters, taken out of them."""
    found = {name: p.grad for name, p in stage.optimizer.parameters.items() if p.grad is not None}
    for name in found:
        stage.optimizer.parameters[name].grad = None
    return found
