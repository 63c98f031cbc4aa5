"""One stage walking its operation list: the code that both executors share, so that they compute the same."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from pipetrain.data.microbatches import split
from pipetrain.executors.clipping import Clipping, clipped, squared_norm
from pipetrain.executors.phase import PipelineRules
from pipetrain.losses import count_of, step_loss
from pipetrain.program.weight_reads import Activations, WeightRead
from pipetrain.schedules import Kind, Operation
from pipetrain.stage.module import MicrobatchId
from pipetrain.stage.stage import Stage, WeightedTargets
from pipetrain.tensors import Tensors

BackwardId = tuple[int, int | None]
"""(minibatch since the start of the run, microbatch; None where all go back together)."""


class Ports(Protocol):
    """A stage's connections to its neighbours; a port takes and gives dense tensors."""

    def receive_activations(self, microbatch: MicrobatchId) -> Tensors:
        """What the stage before sent for this microbatch; waits for it."""
        ...

    def send_activations(self, microbatch: MicrobatchId, tensors: Tensors) -> None:
        """Hands the outputs to the stage behind; does not wait."""
        ...

    def receive_gradients(self, microbatch: BackwardId) -> Tensors:
        """The gradient of each floating-point output of each microbatch, from the stage behind; waits for it."""
        ...

    def send_gradients(self, microbatch: BackwardId, tensors: Tensors) -> None:
        """Hands the gradients of the floating-point inputs to the stage before; does not wait."""
        ...

    def receive_recomputed(self) -> Tensors:
        """What the stage before, of the same segment, recomputed for the next microbatch."""
        ...

    def send_recomputed(self, tensors: Tensors) -> None:
        """Hands the recomputed outputs to the stage behind."""
        ...

    def offer_norm(self, minibatch: int, own: Tensor) -> None:
        """Tells all stages this one's squared gradient norm of a minibatch."""
        ...

    def norms(self, minibatch: int) -> list[Tensor]:
        """The squared gradient norms of all stages in their order, this stage's included; waits for all."""
        ...


class Feed(Protocol):
    """The minibatches of a segment in order; only the first and the last stage ask."""

    def prepare(self) -> None:
        """Reads the next minibatch ahead."""
        ...

    def inputs(self) -> Tensors:
        """The next minibatch's inputs, on the stage's device."""
        ...

    def targets(self) -> Tensors:
        """The next minibatch's targets, on the stage's device."""
        ...


OnStep = Callable[[int, Tensor], None]
"""Called on the last stage after each update with (minibatch since the start of the run, its loss)."""


@dataclass
class _Minibatch:
    losses: list[Tensor] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    targets: list[Tensors] = field(default_factory=list)


class StageRunner:
    """Carries out one stage's list between two drains, an operation at a time.

    Args:
        stage: the stage.
        rules: what it does and reads.
        minibatches: of the list.
        start: minibatches since the start of the run at the list's first operation.
    """

    def __init__(
        self,
        stage: Stage,
        rules: PipelineRules,
        minibatches: int,
        start: int,
        ports: Ports,
        feed: Feed,
        clipping: Clipping | None,
        on_step: OnStep,
        on_operation: Callable[[Operation], None] = lambda operation: None,
    ) -> None:
        self.stage = stage
        self.readings = rules.readings(stage.index, minibatches, start)
        self.index = 0
        self._rules = rules
        self._first = stage.index == 0
        self._last = stage.index == rules.num_stages - 1
        self._stores = rules.segments is not None and rules.segments.begins(stage.index)
        self._relays = rules.segments is not None and not rules.segments.ends(stage.index)
        self.start = start
        self.base = stage.updates
        self._steady = rules.steady
        self._ports = ports
        self._feed = feed
        self.clipping = clipping
        self._offered: set[int] = set()
        self._on_step = on_step
        self._on_operation = on_operation
        self._inputs: list[Tensors] = []
        self._minibatches: dict[int, _Minibatch] = {}

    @property
    def next(self) -> Operation | None:
        """The operation to carry out next; None at the end of the list."""
        return self.readings.operations[self.index] if self.index < len(self.readings.operations) else None

    def step(self) -> None:
        """Carries out the next operation."""
        operation = self.readings.operations[self.index]
        self._on_operation(operation)
        if operation.kind is Kind.UPDATE:
            self._update(operation)
        else:
            read, graph = self._read(operation)
            carry_out = {
                Kind.FORWARD: self._forward,
                Kind.RECOMPUTATION: self._recompute,
                Kind.BACKWARD: self._backward,
            }
            carry_out[operation.kind](operation, read, graph)
        for version in self.readings.released_by(self.index):
            self.stage.weights.release(self.base + version)
        self.index += 1

    def _microbatches(self, operation: Operation) -> list[MicrobatchId]:
        t = self.start + operation.minibatch
        return [(t, j) for j in operation.covers(self._rules.num_microbatches)]

    def _read(self, operation: Operation) -> tuple[WeightRead, Activations]:
        read, graph = self.readings.reads[self.index], self.readings.graphs[self.index]
        assert read is not None
        assert graph is not None
        self._rules.check(self.stage.index, operation, read, self.stage.updates - self.base, self.start)
        return read.moved(self.base), graph

    def _forward(self, operation: Operation, read: WeightRead, graph: Activations) -> None:
        (microbatch,) = self._microbatches(operation)
        minibatch = self._open(operation.minibatch) if self._last else None  # before the wait for the activations
        inputs = self._next_input(microbatch) if self._first else self._received(operation, microbatch)
        if minibatch is None:
            with self.stage.clock.computing():
                outputs = self.stage.forward(microbatch, inputs, read, graph, store=self._stores)
            with self.stage.clock.waiting("send", operation):
                self._ports.send_activations(microbatch, outputs)
            if self._first and microbatch[1] == self._rules.num_microbatches - 1:
                self._feed.prepare()
            return
        j = microbatch[1]
        targets = WeightedTargets(minibatch.targets[j], minibatch.counts[j] / sum(minibatch.counts))
        with self.stage.clock.computing():
            loss = self.stage.forward_loss(microbatch, inputs, targets, read, graph, store=self._stores)
        minibatch.losses.append(loss)

    def _received(self, operation: Operation, microbatch: MicrobatchId) -> Tensors:
        with self.stage.clock.waiting("recv", operation):
            return self._ports.receive_activations(microbatch)

    def _recompute(self, operation: Operation, read: WeightRead, graph: Activations) -> None:
        microbatches = self._microbatches(operation)
        inputs = [None if self._stores else self._ports.receive_recomputed() for _ in microbatches]
        with self.stage.clock.computing():
            results = [
                self.stage.recompute(m, given, read, graph) for m, given in zip(microbatches, inputs, strict=True)
            ]
        for outputs in results if self._relays else []:
            self._ports.send_recomputed(outputs)

    def _backward(self, operation: Operation, read: WeightRead, graph: Activations) -> None:
        place = (self.start + operation.minibatch, operation.microbatch)
        with self.stage.clock.waiting("recv", operation):
            received = None if self._last else self._ports.receive_gradients(place)
        with self.stage.clock.computing():
            gradients = self.stage.backward(self._microbatches(operation), received, read, graph)
        if not self._first:
            with self.stage.clock.waiting("send", operation):
                self._ports.send_gradients(place, gradients)

    def _update(self, operation: Operation) -> None:
        t = self.start + operation.minibatch
        gradients = self._clipped(operation.minibatch)
        keep = self.readings.needed_after(self.index, self.stage.updates - self.base)
        with self.stage.clock.computing():
            self.stage.update(t, gradients, keep=keep, steady=operation.minibatch >= self._steady)
        if self._last:
            minibatch = self._minibatches.pop(operation.minibatch)
            self._on_step(t, step_loss(minibatch.losses, minibatch.counts))
            if not self._first:
                self._feed.prepare()

    def offer_norm(self) -> None:
        """At an update that clips over all stages: tells the others this stage's part of the norm, once."""
        operation = self.next
        if operation is None or operation.minibatch in self._offered:
            return
        self._offered.add(operation.minibatch)
        self._ports.offer_norm(operation.minibatch, squared_norm(self.stage.gradients.tensors))

    def _clipped(self, minibatch: int) -> dict[str, Tensor]:
        if self.clipping is None:
            return self.stage.gradients.take()
        if self.clipping.over_all_stages:
            self.offer_norm()
            norms = self._ports.norms(minibatch)
        else:
            norms = [squared_norm(self.stage.gradients.tensors)]
        return clipped(self.stage.gradients.take(), norms, self.clipping.limit)

    def _next_input(self, microbatch: MicrobatchId) -> Tensors:
        if microbatch[1] == 0:
            self._inputs = split(self._feed.inputs(), self._rules.num_microbatches)
        return self._inputs[microbatch[1]]

    def _open(self, t: int) -> _Minibatch:
        if t not in self._minibatches:
            targets = split(self._feed.targets(), self._rules.num_microbatches)
            assert self.stage.loss is not None
            counts = [count_of(self.stage.loss, target) for target in targets]
            self._minibatches[t] = _Minibatch(counts=counts, targets=targets)
        return self._minibatches[t]
