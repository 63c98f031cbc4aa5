"""One stage walking its operation list: the code that both executors share, so that they compute the same."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from torch import Tensor

from pipetrain.data.batch import split
from pipetrain.losses import count_of, step_loss
from pipetrain.optimizer import clipped, squared_norm
from pipetrain.schedules import Kind, Operation, Read, Readings
from pipetrain.stage import Stage
from pipetrain.stage_module import MicrobatchId, Tensors


class Ports(Protocol):
    """A stage's connections to its neighbours; a port takes and gives dense tensors."""

    def receive_activations(self, microbatch: MicrobatchId) -> Tensors:
        """What the stage before sent for this microbatch; waits for it."""
        ...

    def send_activations(self, microbatch: MicrobatchId, tensors: Tensors) -> None:
        """Hands the outputs to the stage behind; does not wait."""
        ...

    def receive_gradients(self, microbatch: MicrobatchId) -> Tensors:
        """The gradient of each floating-point output, from the stage behind; waits for it."""
        ...

    def send_gradients(self, microbatch: MicrobatchId, tensors: Tensors) -> None:
        """Hands the gradients of the floating-point inputs to the stage before; does not wait."""
        ...

    def offer_norm(self, minibatch: int, own: Tensor) -> None:
        """Tells all stages this one's squared gradient norm of a minibatch."""
        ...

    def norms(self, minibatch: int) -> list[Tensor]:
        """The squared gradient norms of all stages in their order, this stage's included; waits for all."""
        ...


class Feed(Protocol):
    """The minibatches of a segment in order; only the first and the last stage ask."""

    def inputs(self) -> Tensors:
        """The next minibatch's inputs, on the stage's device."""
        ...

    def targets(self) -> Tensors:
        """The next minibatch's targets, on the stage's device."""
        ...


@dataclass(frozen=True)
class Clipping:
    """Gradient clipping: over all stages under synchronous methods, per stage where no global norm exists in time."""

    limit: float
    over_all_stages: bool


OnStep = Callable[[int, Tensor], None]
"""Called on the last stage after each update with (minibatch since the start of the run, its loss)."""


@dataclass
class _Minibatch:
    losses: list[Tensor] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    targets: list[Tensors] = field(default_factory=list)


class Walker:
    """Carries out one stage's list between two drains, an operation at a time.

    Args:
        stage: the stage.
        stages: D.
        readings: its list and what each operation reads.
        microbatches: N.
        start: minibatches since the start of the run at the list's first operation.
        steady: the list's first minibatch of the steady state.
    """

    def __init__(
        self,
        stage: Stage,
        stages: int,
        readings: Readings,
        microbatches: int,
        start: int,
        steady: int,
        ports: Ports,
        feed: Feed,
        clipping: Clipping | None,
        on_step: OnStep,
        on_operation: Callable[[Operation], None] = lambda operation: None,
    ) -> None:
        self.stage = stage
        self.readings = readings
        self.index = 0
        self._first = stage.index == 0
        self._last = stage.index == stages - 1
        self._microbatches = microbatches
        self._start = start
        self._base = stage.updates
        self._steady = steady
        self._ports = ports
        self._feed = feed
        self.clipping = clipping
        self._offered: set[int] = set()
        self._on_step = on_step
        self._on_operation = on_operation
        self._inputs: list[Tensors] = []
        self._minibatches: dict[int, _Minibatch] = {}
        self._changes = readings.changes

    @property
    def next(self) -> Operation | None:
        """The operation to carry out next; None at the end of the list."""
        return self.readings.operations[self.index] if self.index < len(self.readings.operations) else None

    def step(self) -> None:
        """Carries out the next operation."""
        operation = self.readings.operations[self.index]
        self._on_operation(operation)
        if operation.kind is Kind.FORWARD:
            self._forward(operation)
        elif operation.kind is Kind.BACKWARD:
            self._backward(operation)
        else:
            self._update(operation)
        for version in self.readings.released_by(self.index):
            self.stage.weights.release(self._base + version)
        self.index += 1

    def _global(self, operation: Operation) -> MicrobatchId:
        return self._start + operation.minibatch, operation.microbatch

    def _forward(self, operation: Operation) -> None:
        microbatch = self._global(operation)
        inputs = self._next_input(operation) if self._first else self._ports.receive_activations(microbatch)
        read, changes = self._read(), (operation.minibatch, operation.microbatch) in self._changes
        if not self._last:
            with self.stage.clock.computing():
                outputs = self.stage.forward(microbatch, inputs, read, changes)
            self._ports.send_activations(microbatch, outputs)
            return
        minibatch = self._open(operation.minibatch)
        j = operation.microbatch
        share = minibatch.counts[j] / sum(minibatch.counts)
        with self.stage.clock.computing():
            loss = self.stage.forward_loss(microbatch, inputs, minibatch.targets[j], share, read, changes)
        minibatch.losses.append(loss)

    def _backward(self, operation: Operation) -> None:
        microbatch = self._global(operation)
        received = None if self._last else self._ports.receive_gradients(microbatch)
        changes = (operation.minibatch, operation.microbatch) in self._changes
        with self.stage.clock.computing():
            gradients = self.stage.backward(microbatch, received, self._read(), changes)
        if not self._first:
            self._ports.send_gradients(microbatch, gradients)

    def _update(self, operation: Operation) -> None:
        gradients = self._clipped(operation.minibatch)
        keep = self.readings.needed_after(self.index, self.stage.updates - self._base)
        with self.stage.clock.computing():
            self.stage.update(self._global(operation)[0], gradients, keep, operation.minibatch >= self._steady)
        if self._last:
            minibatch = self._minibatches.pop(operation.minibatch)
            self._on_step(self._global(operation)[0], step_loss(minibatch.losses, minibatch.counts))

    def offer_norm(self) -> None:
        """At an update that clips over all stages: tells the others this stage's part of the norm, once."""
        operation = self.next
        if operation is None or operation.minibatch in self._offered:
            return
        self._offered.add(operation.minibatch)
        self._ports.offer_norm(operation.minibatch, squared_norm(self.stage.gradients))

    def _clipped(self, minibatch: int) -> dict[str, Tensor]:
        if self.clipping is None:
            return self.stage.take_gradients()
        if self.clipping.over_all_stages:
            self.offer_norm()
            norms = self._ports.norms(minibatch)
        else:
            norms = [squared_norm(self.stage.gradients)]
        return clipped(self.stage.take_gradients(), norms, self.clipping.limit)

    def _read(self) -> Read:
        read = self.readings.reads[self.index]
        assert read is not None
        return replace(read, version=self._base + read.version)

    def _next_input(self, operation: Operation) -> Tensors:
        if operation.microbatch == 0:
            self._inputs = split(self._feed.inputs(), self._microbatches)
        return self._inputs[operation.microbatch]

    def _open(self, t: int) -> _Minibatch:
        if t not in self._minibatches:
            targets = split(self._feed.targets(), self._microbatches)
            assert self.stage.loss is not None
            counts = [count_of(self.stage.loss, target) for target in targets]
            self._minibatches[t] = _Minibatch(counts=counts, targets=targets)
        return self._minibatches[t]
