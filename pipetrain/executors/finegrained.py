"""A pipeline of very many stages in one process: the whole model, each weight as old as its stage would read it."""

import itertools
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from pipetrain.data.loader import Loader
from pipetrain.data.microbatches import split
from pipetrain.executors.base import OneProcess
from pipetrain.executors.clipping import clipped, squared_norm
from pipetrain.executors.drain_interval import DrainInterval
from pipetrain.executors.evaluation import Score
from pipetrain.executors.feed import LoaderFeed, to_device
from pipetrain.executors.phase import Phase, PipelineRules
from pipetrain.executors.stage_runner import OnStep
from pipetrain.losses import Loss, count_of, step_loss
from pipetrain.program.weight_reads import Activations
from pipetrain.schedules import Kind
from pipetrain.stage.base import BaseStage
from pipetrain.stage.module import AtLayer, MicrobatchId, StageModule
from pipetrain.stage.saved_tensors import SavedTensors
from pipetrain.stage.unit_stage import UnitStage
from pipetrain.tensors import Tensors, storage_pointers


class _Reader:
    """Reads a stage's weights when the stage would, ahead of the one pass through the model that uses them."""

    def __init__(self, stage: BaseStage, rules: PipelineRules, interval: DrainInterval) -> None:
        self.stage = stage
        self._rules = rules
        self._start = interval.start
        self._base = stage.updates
        self._readings = rules.readings(stage.index, interval.minibatches, interval.start)
        self._index = 0
        self._queues: dict[Kind, deque[tuple[int, dict[str, Tensor]]]] = {
            Kind.FORWARD: deque(),
            Kind.RECOMPUTATION: deque(),
        }
        self._queued: Counter[int] = Counter()
        self._backward: dict[str, Tensor] | None = None
        self.change = self._readings.change
        self._read_ahead()

    def _read(self) -> tuple[int, dict[str, Tensor]]:
        op, read = self._readings.operations[self._index], self._readings.reads[self._index]
        assert read is not None
        self._rules.check(self.stage.index, op, read, self.stage.updates - self._base, self._start)
        here = read.moved(self._base)
        seen = {Kind.FORWARD: self.stage.measurements.forward, Kind.BACKWARD: self.stage.measurements.backward}.get(
            op.kind
        )
        if seen is not None:
            seen.setdefault(self._start + op.minibatch, []).append(here.version)
        # a backward that reads what the pass before it read uses what that was lent
        again = op.kind is Kind.BACKWARD and self._readings.graphs[self._index] is Activations.KEPT
        tensors = {} if again else self.stage.weights.read(here.version, here.transform)
        for version in self._readings.released_by(self._index):
            self.stage.weights.release(self._base + version)
        self._index += 1
        return here.version, tensors

    def _read_ahead(self) -> None:
        operations = self._readings.operations
        while self._index < len(operations) and operations[self._index].kind in self._queues:
            op = operations[self._index]
            version, tensors = self._read()
            for _ in op.covers(self._rules.num_microbatches):
                self._queues[op.kind].append((version, tensors))
                self._queued[version] += 1

    def take(self, kind: Kind) -> dict[str, Tensor]:
        """What the next forward or recomputation reads."""
        version, tensors = self._queues[kind].popleft()
        self._queued[version] -= 1
        return tensors

    def backward(self) -> dict[str, Tensor] | None:
        """What the backward reads, None where that is what the pass before it read; reads on.

        One backward of a whole minibatch reads the same for all its microbatches.
        """
        if self._readings.operations[self._index].kind is Kind.BACKWARD:
            self._backward = self._read()[1] or None
            self._read_ahead()
        return self._backward

    def update(self, minibatch: int, gradients: dict[str, Tensor], steady: bool) -> None:
        """U; reads on."""
        newest = self.stage.updates
        later = self._readings.needed_after(self._index, newest - self._base)
        self.stage.update(minibatch, gradients, keep=later or self._queued[newest] > 0, steady=steady)
        if not later:
            self.stage.weights.release(newest)  # what was read ahead holds its tensors itself
        self._index += 1
        self._backward = None
        self._read_ahead()


class _Rejoin(torch.autograd.Function):
    """Before a segment of recomputation: the value that the forward had, the gradient to the recomputed one."""

    @staticmethod
    def forward(ctx: Any, recomputed: Tensor, stored: Tensor) -> Tensor:
        return stored.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0], None


@dataclass(frozen=True)
class WholeModel:
    """What computes, beside the stages that hold its weights.

    Attributes:
        module: all layers.
        segments: first layers of segments of recomputation; None where nothing is recomputed.
    """

    module: StageModule
    loss: Loss
    segments: tuple[int, ...] | None = None


class FinegrainedExecutor(OneProcess):
    """Simulates any number of stages with the memory of one model, its activations, and the weights' history.

    Every stage's weights change by its own operation list, and are read when it would read them; a microbatch passes
    the whole model at once, forward and backward, where the list of a pipeline has its backward.
    """

    unmeasured: ClassVar[tuple[str, ...]] = ("activation_bytes_peak",)

    def __init__(
        self,
        stages: Sequence[UnitStage],
        model: WholeModel,
        phases: Sequence[Phase],
        clip_norm: float | None,
        on_step: OnStep,
    ) -> None:
        super().__init__(phases, clip_norm, on_step)
        self.stages: list[UnitStage] = list(stages)
        self._model = model

    @property
    def copy_seconds(self) -> float:
        """Time spent so far on copying weights that the simulated pipeline still reads."""
        return sum(stage.weights.copy_seconds for stage in self.stages)

    def train(self, loader: Loader, interval: DrainInterval) -> list[float | None]:
        """Carries out the segment; no idle shares, as no stage runs by itself."""
        rules = self.enter(interval)
        readers = [_Reader(stage, rules, interval) for stage in self.stages if stage.weights.newest.tensors]
        feed = LoaderFeed(loader, interval, self.stages[0].device, inputs=True, targets=True)
        for t in range(interval.minibatches):
            inputs = split(feed.inputs(), rules.num_microbatches)
            targets = split(feed.targets(), rules.num_microbatches)
            loss = self._minibatch(readers, rules, interval.start + t, inputs, targets)
            gradients = self._clipped(readers, rules)
            for reader, gradient in zip(readers, gradients, strict=True):
                reader.update(interval.start + t, gradient, t >= rules.steady)
            self.on_step(interval.start + t, loss)
        return [None] * len(self.stages)

    def _minibatch(
        self, readers: list[_Reader], rules: PipelineRules, t: int, inputs: list[Tensors], targets: list[Tensors]
    ) -> Tensor:
        counts = [count_of(self._model.loss, target) for target in targets]
        losses = []
        for j, (x, y) in enumerate(zip(inputs, targets, strict=True)):
            one = _Pass(self._model, readers, (t, j), x, y, counts[j] / sum(counts))
            losses.append(one.carry_out())
        return step_loss(losses, counts)

    def _clipped(self, readers: list[_Reader], rules: PipelineRules) -> list[dict[str, Tensor]]:
        clipping = self.clipping(rules)
        if clipping is None:
            return [reader.stage.gradients.take() for reader in readers]
        norms = [squared_norm(reader.stage.gradients.tensors) for reader in readers]
        return [
            clipped(reader.stage.gradients.take(), norms if clipping.over_all_stages else [norm], clipping.limit)
            for reader, norm in zip(readers, norms, strict=True)
        ]

    def evaluate(self, loader: Loader) -> dict[str, float]:
        """Metrics over the whole evaluation set."""
        score, device = Score(self._model.loss), self.stages[0].device
        for inputs, targets in loader.samples(0):
            score.add(self._model.module.evaluate(*to_device(inputs, device)), to_device(targets, device))
        return score.metrics()


@dataclass
class _Pass:
    """One microbatch through the whole model, forward and backward."""

    model: WholeModel
    readers: list[_Reader]
    microbatch: MicrobatchId
    inputs: Tensors
    targets: Tensors
    share: float

    def carry_out(self) -> Tensor:
        """Adds to the stages' gradients; the mean loss, detached."""
        used = [reader.take(Kind.FORWARD) for reader in self.readers]
        if self.model.segments is None:
            loss, leaves, saved = self._forward(used, lambda layer, tensors: tensors)
            value = loss.detach()
        else:
            stored: dict[int, Tensors] = {}
            value = self._forward(used, lambda layer, tensors: self._store(stored, layer, tensors))[0].detach()
            used = [reader.take(Kind.RECOMPUTATION) for reader in self.readers]
            with self.model.module.spare_buffers():
                loss, leaves, saved = self._forward(used, lambda layer, tensors: self._rejoin(stored, layer, tensors))
        if saved is not None:
            saved.backward_weights = self._backward_weights(used)
        else:
            self._backward_weights(used)
        self._backward(loss, leaves)
        return value

    def _forward(
        self, weights: list[dict[str, Tensor]], at_layer: AtLayer
    ) -> tuple[Tensor, list[dict[str, Tensor]], SavedTensors | None]:
        leaves = [reader.stage.leaves(read) for reader, read in zip(self.readers, weights, strict=True)]
        change = any(reader.change for reader in self.readers)
        saved = SavedTensors(_merged(weights)) if change else None
        with saved.hooks() if saved else nullcontext(), self.model.module.reading(_merged(leaves), reread=change):
            outputs = self.model.module(*self.inputs, microbatch=self.microbatch, at_layer=at_layer)
            return self.model.loss(*outputs, *self.targets), leaves, saved

    def _backward_weights(self, used: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        return _merged([reader.backward() or read for reader, read in zip(self.readers, used, strict=True)])

    def _backward(self, loss: Tensor, leaves: list[dict[str, Tensor]]) -> None:
        given = torch.full_like(loss, self.share)
        for reader, own in zip(self.readers, leaves, strict=True):
            reader.stage.gradients.lend(own)
        torch.autograd.backward(loss, given)
        taken = storage_pointers([given])  # one memory may be handed to weights of several stages
        for reader in self.readers:
            reader.stage.gradients.collect(taken, more=False)

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
