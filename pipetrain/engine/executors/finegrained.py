"""A pipeline of very many stages in one process: the whole model, each weight as old as its stage would read it."""

import itertools
import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from pipetrain.engine.data.minibatches import Minibatches, split
from pipetrain.engine.executors.base import IntervalTimes, OneProcess
from pipetrain.engine.executors.evaluation import evaluate_model
from pipetrain.engine.executors.hooks import RunHooks
from pipetrain.engine.executors.pipeline_rules import Phase, PipelineRules
from pipetrain.engine.executors.read_cursor import ReadCursor
from pipetrain.engine.losses import (
    NO_METRICS,
    Loss,
    Metrics,
    StepLoss,
    count_of,
    microbatch_loss,
    microbatch_weight,
    step_loss,
)
from pipetrain.engine.methods import Method
from pipetrain.engine.program.drain_interval import DrainInterval
from pipetrain.engine.program.planned_operations import Activations, PlannedOperation, rebinds_weights
from pipetrain.engine.program.repeating_list import pattern
from pipetrain.engine.program.weight_reads import StageContext
from pipetrain.engine.schedules import Kind
from pipetrain.engine.stage.base import BaseStage, Training
from pipetrain.engine.stage.gradients import clipped, squared_norm
from pipetrain.engine.stage.module import AtLayer, MicrobatchId, StageModule
from pipetrain.engine.stage.recurrent_state import RecurrentState
from pipetrain.engine.stage.saved_tensors import CastRecognition, SavedTensors
from pipetrain.engine.tensors import Tensors, storage_pointers


class ParameterStage(BaseStage):
    """A stage of single weights: their versions and optimizer. The whole model computes with them.

    `names` maps local names of its parameters and buffers to full names; `module` is the whole model.
    """

    def __init__(self, index: int, names: Mapping[str, str], module: StageModule, training: Training) -> None:
        # most stages of a deep pipeline are empty, and need not look through the whole model
        held = module if names else nn.Module()
        parameters = {name: parameter for name, parameter in held.named_parameters() if name in names}
        self.full_names = dict(names)
        super().__init__(index, parameters, training)
        # one stage answers for what the whole model carries
        self.carried = module.carried if index == 0 else RecurrentState({})
        self._held = held

    @override
    def enter(self, method: Method, context: StageContext, start: int, *, fresh: bool, predicts: bool) -> None:
        """Enters a phase; allows any number of versions, as the simulation keeps more than a pipeline would."""
        super().enter(method, context, start, fresh=fresh, predicts=predicts)
        self.versions_allowed = math.inf
        self.weights.meter.mark()

    @override
    def state(self) -> dict[str, Tensor]:
        # a forward may have put other tensors in the place of buffers
        buffers = {name: buffer for name, buffer in self._held.named_buffers() if name in self.full_names}
        tensors = {**self.weights.newest.tensors, **buffers}
        return {self.full_names[local]: tensor for local, tensor in tensors.items()}


class _Reader:
    """Reads a stage's weights when the stage would, ahead of the one pass through the model that uses them."""

    def __init__(self, stage: ParameterStage, rules: PipelineRules, interval: DrainInterval) -> None:
        self.stage = stage
        self._cursor = ReadCursor(stage, rules, interval)
        self._num_microbatches = rules.num_microbatches
        self._queues: dict[Kind, deque[tuple[int, dict[str, Tensor]]]] = {
            Kind.FORWARD: deque(),
            Kind.RECOMPUTATION: deque(),
        }
        self._ahead = {*self._queues, Kind.WEIGHT_GRADIENT}
        self._queued: Counter[int] = Counter()
        self._backward: dict[str, Tensor] | None = None
        self.rebinds = rebinds_weights(pattern(self._cursor.planned))
        self._read_ahead()

    def _read(self, planned: PlannedOperation) -> tuple[int, dict[str, Tensor]]:
        """Version that an operation reads, and its tensors; none if a backward uses its forward's."""
        read = self._cursor.read(planned)
        lent = planned.operation.kind is Kind.BACKWARD and planned.activations is Activations.KEPT
        tensors = {} if lent else self.stage.weights.read(read.version, read.transform)
        self._cursor.advance(planned)
        return read.version, tensors

    def _read_ahead(self) -> None:
        while (planned := self._cursor.next) is not None and planned.operation.kind in self._ahead:
            if planned.operation.kind is Kind.WEIGHT_GRADIENT:
                self._cursor.advance(planned)  # the backward of a pass is whole
                continue
            version, tensors = self._read(planned)
            for _ in planned.operation.covers(self._num_microbatches):
                self._queues[planned.operation.kind].append((version, tensors))
                self._queued[version] += 1

    def forward(self, minibatch: int) -> dict[str, Tensor]:
        """Weights that the next forward reads, one of this minibatch of the run."""
        version, tensors = self._take(Kind.FORWARD)
        self.stage.measurements.forward[minibatch].append(version)
        return tensors

    def recomputation(self) -> dict[str, Tensor]:
        """Weights that the next recomputation reads."""
        return self._take(Kind.RECOMPUTATION)[1]

    def _take(self, kind: Kind) -> tuple[int, dict[str, Tensor]]:
        version, tensors = self._queues[kind].popleft()
        self._queued[version] -= 1
        return version, tensors

    def backward(self) -> dict[str, Tensor] | None:
        """Weights that the backward reads; None if it reads the same as the pass before it.

        The backward of a whole minibatch reads the same for all its microbatches.
        """
        planned = self._cursor.next
        if planned is not None and planned.operation.kind is Kind.BACKWARD:
            version, tensors = self._read(planned)
            minibatch = self._cursor.start + planned.operation.minibatch
            self.stage.measurements.backward[minibatch].append(version)
            self._backward = tensors or None
            self._read_ahead()
        return self._backward

    def update(self, minibatch: int, gradients: dict[str, Tensor], *, steady: bool) -> None:
        """Carries out U, and reads on."""
        planned, newest = self._cursor.next, self.stage.updates
        assert planned is not None, "a pass for each backward comes before the update"
        self.stage.update(minibatch, gradients, keep=not planned.releases or self._queued[newest] > 0, steady=steady)
        self._cursor.advance(planned)  # what was read ahead holds its tensors itself
        self._backward = None
        self._read_ahead()

    def break_off(self) -> None:
        """Discards the weights read ahead and kept for minibatches that do not come any more."""
        weights = self.stage.weights
        for queue in self._queues.values():
            queue.clear()
        for version in set(weights.held()) - {self.stage.updates}:
            weights.release(version)
        weights.stashed.clear()
        weights.pool.free()


class _Rejoin(torch.autograd.Function):
    """Before a segment of recomputation: the stored value, and the gradient to the recomputed one."""

    @staticmethod
    @override
    def forward(_ctx: Any, _recomputed: Tensor, stored: Tensor) -> Tensor:
        return stored.clone()

    @staticmethod
    @override
    def backward(_ctx: Any, *gradients: Any) -> Any:
        return gradients[0], None


@dataclass(frozen=True)
class WholeModel:
    """The model that computes with the weights of the stages.

    Attributes:
        segments: first layers of segments of recomputation; None for no recomputation.
        casts: recognizes casts of weights in its forwards.
    """

    module: StageModule
    loss: Loss
    segments: tuple[int, ...] | None = None
    casts: CastRecognition = field(default_factory=CastRecognition)


class FinegrainedExecutor(OneProcess):
    """Simulates any number of stages with the memory of one model, its activations, and the weights' history.

    Every stage's weights change by its own operation list, and are read when it would read them. A microbatch passes
    the whole model in one operation, forward and backward, at the time of its backward in the pipeline.
    """

    unmeasured: ClassVar[tuple[str, ...]] = ("activation_bytes_peak",)

    def __init__(
        self,
        stages: Sequence[ParameterStage],
        model: WholeModel,
        phases: Sequence[Phase],
        hooks: RunHooks,
        clip_norm: float | None = None,
    ) -> None:
        super().__init__(stages, phases, hooks, clip_norm)
        self.stages: list[ParameterStage] = list(stages)
        self._model = model

    @property
    def copy_seconds(self) -> float:
        """Time spent so far on copying weights that the simulated pipeline still reads."""
        return sum(stage.weights.copy_seconds for stage in self.stages)

    @override
    def train(self, loader: Minibatches, interval: DrainInterval) -> IntervalTimes:
        """Trains on the interval; no idle shares, as no stage runs separately."""
        rules = self.enter(interval)
        readers = [_Reader(stage, rules, interval) for stage in self.stages if stage.weights.newest.tensors]
        feed, steady = self.feed(loader, interval, self.stages), rules.steady
        for t in range(interval.minibatches):
            if not self.hooks.gate.admits():
                for reader in readers:
                    reader.break_off()
                break
            inputs = split(feed.inputs(), rules.num_microbatches)
            targets = split(feed.targets().on_device, rules.num_microbatches)
            loss = self._minibatch(readers, interval.start + t, inputs, targets)
            gradients = self._clipped(readers, rules)
            for reader, gradient in zip(readers, gradients, strict=True):
                reader.update(interval.start + t, gradient, steady=t >= steady)
            self.hooks.on_step(interval.start + t, loss)
        return IntervalTimes([None] * len(self.stages))

    def _minibatch(self, readers: list[_Reader], t: int, inputs: list[Tensors], targets: list[Tensors]) -> StepLoss:
        counts = [count_of(self._model.loss, target) for target in targets]
        losses = []
        for j, (x, y) in enumerate(zip(inputs, targets, strict=True)):
            one = _Pass(self._model, readers, (t, j), x, y, microbatch_weight(counts, j))
            losses.append(one.carry_out())
        return step_loss(losses, counts)

    def _clipped(self, readers: list[_Reader], rules: PipelineRules) -> list[dict[str, Tensor]]:
        gradients = [reader.stage.gradients.take() for reader in readers]
        if self.clip_norm is None:
            return gradients
        norms = {reader.stage.index: squared_norm(each) for reader, each in zip(readers, gradients, strict=True)}
        # with stages without weights, as in a pipeline of processes: zeros change the order of a sum
        together = [norms.get(stage.index, torch.zeros(())) for stage in self.stages]
        return [
            clipped(each, together if rules.decides_updates_together else [norm], self.clip_norm)
            for each, norm in zip(gradients, norms.values(), strict=True)
        ]

    @override
    def evaluate(self, loader: Minibatches, metrics: Metrics = NO_METRICS) -> dict[str, float]:
        module, loss = self._model.module, self._model.loss
        parts = self.evaluated_parts(len(loader))
        averaged = self.stages[0].weights.average is not None
        weights = _merged([stage.weights.evaluated for stage in self.stages])
        with module.using_weights(weights) if averaged else nullcontext():
            return evaluate_model(loader, lambda inputs: module.evaluate(*inputs), loss, self._uploads, metrics, parts)


@dataclass
class _Pass:
    """Forward and backward of one microbatch through the whole model."""

    model: WholeModel
    readers: list[_Reader]
    microbatch: MicrobatchId
    inputs: Tensors
    targets: Tensors
    loss_weight: float

    def carry_out(self) -> Tensor:
        """Adds to the stages' gradients; the mean loss, detached."""
        used = [reader.forward(self.microbatch[0]) for reader in self.readers]
        if self.model.segments is None:
            loss, leaves, saved = self._forward(used)
            value = loss.detach()
        else:
            stored: dict[int, Tensors] = {}
            carried, j = self.model.module.carried, self.microbatch[1]
            began_with = carried.of(j)
            value = self._forward(used, lambda layer, tensors: self._store(stored, layer, tensors))[0].detach()
            used = [reader.recomputation() for reader in self.readers]
            with self.model.module.scratch_buffers(), carried.aside({j: began_with}):
                loss, leaves, saved = self._forward(used, lambda layer, tensors: self._rejoin(stored, layer, tensors))
        weights = _merged([reader.backward() or read for reader, read in zip(self.readers, used, strict=True)])
        if saved is not None:
            saved.backward_weights = weights
            for name, leaf in _merged(leaves).items():
                leaf.data = weights[name]
        self._backward(loss, leaves)
        return value

    def _forward(
        self, weights: list[dict[str, Tensor]], at_layer: AtLayer | None = None
    ) -> tuple[Tensor, list[dict[str, Tensor]], SavedTensors | None]:
        leaves = [reader.stage.leaves(read) for reader, read in zip(self.readers, weights, strict=True)]
        rebound = any(reader.rebinds for reader in self.readers)
        saved = self._saved_tensors(_merged(weights)) if rebound else None
        with (
            saved.hooks() if saved else nullcontext(),
            self.model.module.using_weights(_merged(leaves), rebound=rebound),
        ):
            # a recomputation reads them again, and the first operation may be in place
            inputs = self.inputs if self.model.segments is None else tuple(tensor.clone() for tensor in self.inputs)
            outputs = self.model.module(*inputs, microbatch=self.microbatch, at_layer=at_layer)
            return microbatch_loss(self.model.loss, outputs, self.targets, self.loss_weight), leaves, saved

    def _saved_tensors(self, weights: dict[str, Tensor]) -> SavedTensors:
        shapes = tuple(tensor.shape for tensor in self.inputs)
        mixed = self.model.module.arithmetic.mixed
        return SavedTensors(weights, self.model.casts.of_forward(weights, shapes) if mixed else None)

    def _backward(self, loss: Tensor, leaves: list[dict[str, Tensor]]) -> None:
        loss_gradient = torch.full_like(loss, self.loss_weight)
        for reader, leaves_of_stage in zip(self.readers, leaves, strict=True):
            reader.stage.attach_gradients(leaves_of_stage)
        # a layer that checkpoints itself reads the module's parameters again here
        with self.model.module.using_weights(_merged(leaves)):
            torch.autograd.backward(loss, loss_gradient)
        # one memory may be handed to weights of several stages
        foreign_storages = storage_pointers([loss_gradient])
        for reader in self.readers:
            reader.stage.gradients.harvest(foreign_storages, reuse_leaves=False)

    def _store(self, stored: dict[int, Tensors], layer: int, tensors: Tensors) -> Tensors:
        if self.model.segments is not None and layer in self.model.segments:
            stored[layer] = tuple(tensor.detach().clone() for tensor in tensors)
        return tensors

    def _rejoin(self, stored: dict[int, Tensors], layer: int, tensors: Tensors) -> Tensors:
        if layer not in stored or layer == 0:
            return tensors
        pairs = zip(tensors, stored[layer], strict=True)
        return tuple(_Rejoin.apply(x, y) if x.requires_grad else y for x, y in pairs)


def _merged(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return dict(itertools.chain.from_iterable(part.items() for part in parts))
