"""The stages of this process under a schedule of torch.distributed.pipelining, which that library carries out."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from pipetrain.engine.data.minibatches import Minibatches, split
from pipetrain.engine.device_queue import numbers, queues
from pipetrain.engine.errors import ConfigError
from pipetrain.engine.executors.base import IntervalTimes, ManyProcesses
from pipetrain.engine.executors.feed import Feed
from pipetrain.engine.executors.hooks import RunHooks
from pipetrain.engine.executors.messages.links import Links
from pipetrain.engine.executors.messages.p2p import Key, evaluation_keys
from pipetrain.engine.executors.messages.transport import Transport
from pipetrain.engine.executors.pipeline_rules import Phase, PipelineRules
from pipetrain.engine.executors.tied_weights import TiedMessages
from pipetrain.engine.losses import NO_METRICS, Metrics
from pipetrain.engine.program.drain_interval import DrainInterval
from pipetrain.engine.stage.gradients import clipped, squared_norm
from pipetrain.engine.stage.stage import Stage
from pipetrain.engine.tensors import Tensors
from pipetrain.plugins.torch_schedules.pipe import Pipe, Relay, Shapes
from pipetrain.plugins.torch_schedules.schedules import TorchSchedule


class TorchPipeliningExecutor(ManyProcesses):
    """Passes minibatches through the stages of this process by a schedule of torch's library.

    The library does not report when an operation runs or which activations are alive, so idle shares and activation
    bytes are unknown.
    """

    unmeasured: ClassVar[tuple[str, ...]] = ("activation_bytes_peak",)

    def __init__(
        self,
        stages: Sequence[Stage],
        phases: Sequence[Phase],
        hooks: RunHooks,
        clip_norm: float | None = None,
        transport: Transport | None = None,
    ) -> None:
        super().__init__(stages, phases, hooks, clip_norm, transport or Transport(stages[0].device))
        if queues(stages[0].device) and not self.transport.direct and self._placement.num_processes > 1:
            raise ConfigError(
                f"device={stages[0].device.type}: torch.distributed.pipelining needs a GPU for each process, and "
                f"{self.transport.reason}; device=cpu works"
            )
        self.stages: Sequence[Stage] = stages
        # every process makes all groups, in one order, as torch requires
        self._relay = Relay(stages, self._placement, hooks.waiting)
        self._group = self.transport.new_group()
        if not self.transport.direct:  # the library's sends do not expect to wait for the receiver's first call
            processes = [*map(self._placement.process_of, range(self.num_stages))]
            for source, target in dict.fromkeys(pairwise(processes)):
                if source != target:
                    self.transport.connect(source, target, self._group)
        self._tied = TiedMessages(stages, self._placement.process_of, Links(self.transport, hooks.waiting))
        self._pipes: dict[tuple[str, int], Pipe] = {}
        schedules = [phase.rules.schedule for phase in phases]
        if any(isinstance(schedule, TorchSchedule) and schedule.splits_backward for schedule in schedules):
            for stage in stages:
                # Autograd returns one tensor for both weights of a sum. When the library computes gradients of weights
                # separately, it adds those of later microbatches in place, here once for each weight.
                for parameter in stage.optimizer.parameters.values():
                    parameter.register_hook(torch.clone)

    # -- training ------------------------------------------------------------------------------------------------

    @override
    def train(self, loader: Minibatches, interval: DrainInterval) -> IntervalTimes:
        rules = self.enter(interval)
        feed = self.feed(loader, interval, self.stages)
        sizes = loader.sizes(interval.epoch)[interval.first : interval.last]
        for t, size in enumerate(sizes, start=interval.start):
            if not self.hooks.gate.admits():
                break
            self.hooks.on_progress(f"minibatch {t}")
            inputs = feed.inputs() if self.stages[0].index == 0 else ()
            targets = feed.targets().on_device if self.stages[-1].loss is not None else ()
            pipe = self._pipe(rules, size // rules.num_microbatches, inputs)
            with self.hooks.waiting(f"the other processes' part of minibatch {t}"):
                loss = pipe.step(t, inputs, split(targets, rules.num_microbatches))
            self._update(rules, t)
            if loss is not None:
                self.hooks.on_step(t, loss)
        self._drained()
        return IntervalTimes([None] * len(self.stages))

    def _pipe(self, rules: PipelineRules, samples: int, inputs: Tensors) -> Pipe:
        """The library's objects for microbatches of `samples` samples, which its buffers are made for."""
        schedule = rules.schedule
        assert isinstance(schedule, TorchSchedule)
        key = schedule.library_name, samples
        if key not in self._pipes:
            self._pipes[key] = Pipe(
                schedule, rules, self.stages, self._shapes(samples, inputs), self._group, self.hooks.computing
            )
        return self._pipes[key]

    def _shapes(self, samples: int, inputs: Tensors) -> dict[int, Shapes]:
        """Shapes of a microbatch at each stage of this process, found by passing the first one through all stages."""
        shapes: dict[int, Shapes] = {}

        def forward(stage: Stage, tensors: Tensors) -> Tensors:
            copies = tuple(tensor.clone() for tensor in tensors)  # a first layer may work in place
            with stage.module.scratch_buffers(), stage.carried.aside({}), torch.no_grad():
                outputs: Tensors = stage.module(*copies, microbatch=(0, 0))
            first, last = stage.index == 0, stage.index == self.num_stages - 1
            shapes[stage.index] = Shapes.of(tensors, outputs, first=first, last=last)
            return outputs

        self._relay.carry(("shapes", samples), lambda: tuple(tensor[:samples] for tensor in inputs), forward)
        self._relay.end()
        return shapes

    def _update(self, rules: PipelineRules, t: int) -> None:
        for stage in self.stages:
            parameters = stage.optimizer.parameters
            stage.gradients.put({name: p.grad for name, p in parameters.items() if p.grad is not None})
            for parameter in parameters.values():
                parameter.grad = None
            self._tied.offer(stage.index, stage.tied_gradients)
        for stage in self.stages:
            stage.take_over(self._tied.take(stage.index) or {})
        norms = self._squared_norms() if self.clip_norm is not None else []
        for stage in self.stages:
            gradients = stage.gradients.take()
            if self.clip_norm is not None:
                gradients = clipped(gradients, norms, self.clip_norm)
            # the weights have not changed since the forwards
            stage.measurements.backward[t] = [stage.updates] * rules.num_microbatches
            stage.update(t, gradients, keep=False, steady=True)

    def _squared_norms(self) -> list[Tensor]:
        squared = [squared_norm(stage.counted(stage.gradients.tensors)) for stage in self.stages]
        with self.hooks.waiting("its device"):
            own = numbers(squared)
        return [torch.tensor(norm, dtype=torch.float64) for norm in self.gather(own)]

    # -- evaluation ------------------------------------------------------------------------------------------------

    @override
    def evaluate(self, loader: Minibatches, metrics: Metrics = NO_METRICS) -> dict[str, float] | None:
        feed = self.feed(loader, DrainInterval.whole(len(loader)), self.stages)
        outputs, loss = self._outputs(evaluation_keys(loader), feed), self.stages[-1].loss
        found = self._metrics(outputs, feed, loss, metrics)
        self._relay.end()
        return found

    def _outputs(self, keys: Sequence[Key], feed: Feed) -> Iterator[Tensors]:
        for part in self.evaluated_parts(len(keys)):
            yield self._relay.carry(keys[part], feed.inputs, lambda stage, tensors: stage.evaluate(tensors))
