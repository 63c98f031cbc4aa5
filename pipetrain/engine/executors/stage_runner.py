"""Runs the operation list of one stage: shared by the simulated and the distributed executor, hence the same bits."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from pipetrain.engine.data.minibatches import split
from pipetrain.engine.device_queue import numbers
from pipetrain.engine.errors import InvariantError
from pipetrain.engine.executors.feed import Feed
from pipetrain.engine.executors.hooks import RunHooks
from pipetrain.engine.executors.read_cursor import ReadCursor
from pipetrain.engine.executors.replicas.averaging import Averaging, Round, RoundGradients
from pipetrain.engine.executors.replicas.late_losses import LateLosses, LossExchange
from pipetrain.engine.executors.tied_weights import TiedGradients
from pipetrain.engine.losses import StepLoss, count_of, microbatch_weight, step_loss
from pipetrain.engine.program.planned_operations import PlannedOperation
from pipetrain.engine.program.recomputation import sender_of
from pipetrain.engine.schedules import Kind, Operation
from pipetrain.engine.stage.gradients import clipped, largest, squared_norm
from pipetrain.engine.stage.module import BackwardId, MicrobatchId
from pipetrain.engine.stage.stage import Stage, WeightedTargets
from pipetrain.engine.tensors import Tensors


class Ports(Protocol):
    """A stage's connections to the other stages and to its replicas.

    A message is identified by the operation that takes it: a forward takes activations, a recomputation recomputed
    activations, and a backward gradients, of a whole minibatch together if it is one backward.

    Attributes:
        tied: sums the gradients of weights that stages share.
        averaging: averages gradients over the replicas; None for a stage without replicas, or if they train alone.
        losses: passes losses among replicas of the last stage that train alone, else None.
    """

    tied: TiedGradients
    averaging: Averaging | None
    losses: LossExchange | None

    def receive(self, kind: Kind, microbatch: BackwardId) -> Tensors:
        """Dense tensors of a message; waits for it."""

    def send(self, kind: Kind, microbatch: BackwardId, tensors: Tensors) -> None:
        """Sends a message to the neighbor whose operation takes it; does not wait."""

    def norms(self, this: Round, norm: Tensor) -> list[Tensor] | None:
        """Squared gradient norms of all stages in order, given this stage's.

        In one process None while another stage has yet to give its own; between processes, waits for them.
        """


@dataclass
class _Minibatch:
    """Counts, targets and losses of a minibatch, by microbatch, on the last stage until its update."""

    counts: list[float]
    targets: list[Tensors]
    losses: dict[int, Tensor] = field(default_factory=dict)


class StageRunner:
    """Runs the operation list of one stage between two drains, one operation at a time."""

    def __init__(
        self, cursor: ReadCursor[Stage], ports: Ports, feed: Feed, clip_norm: float | None, hooks: RunHooks
    ) -> None:
        self.cursor = cursor
        self.stage = cursor.stage
        self._ports = ports
        self._feed = feed
        self._clip_norm = clip_norm
        self._hooks = hooks
        stage, rules = cursor.stage, cursor.rules
        self._messages = stage.messages
        self._num_microbatches = rules.num_microbatches
        self._replicas = rules.replicas
        self._first = stage.index == 0
        self._last = stage.index == rules.num_stages - 1
        self._stores = rules.segments is not None and rules.segments.begins(stage.index)
        self._relays = rules.segments is not None and not rules.segments.ends(stage.index)
        self._inputs: dict[int, dict[int, Tensors]] = {}
        """Minibatch -> microbatch -> inputs of forwards to come."""
        self._splits = stage.splits_backward = rules.schedule.splits_backward
        self._went_back: dict[int, int] = {}
        """Minibatch -> microbatches whose backward, with its W, has been carried out, until it was the last one."""
        self._minibatches: dict[int, _Minibatch] = {}
        self._exchange: Iterator[bool] | None = None
        self._squared_norms: list[Tensor] = []
        self._largest_sent: list[Tensor] = []
        """Largest values of the scaled gradients sent since the last update; kept if the stage sets its own factor."""
        self._losses: Sequence[StepLoss] = ()
        self._late_losses: LateLosses | None = None
        if ports.losses is not None and self._replicas.delay is not None:
            on_step = None if stage.replica else hooks.on_step
            self._late_losses = LateLosses(ports.losses, self._replicas.delay, stage.device, on_step)

    @property
    def next(self) -> Operation | None:
        """The operation to carry out next; None at the end of the list."""
        return self.cursor.next.operation if self.cursor.next is not None else None

    @property
    def updates_next(self) -> bool:
        """True if the next operation is an update."""
        return self.next is not None and self.next.kind is Kind.UPDATE

    def step(self) -> None:
        """Carries out the next operation."""
        planned = self.cursor.next
        assert planned is not None, "the list has ended"
        kind = planned.operation.kind
        self._hooks.on_operation(self.stage.index, planned.operation)
        if self.stage.replica_weights is not None:
            with self.stage.clock.waiting("recv", planned.operation):
                self.bring_in()
        if kind is Kind.FORWARD:
            self._forward(planned)
        elif kind is Kind.BACKWARD:
            self._backward(planned)
        elif kind is Kind.WEIGHT_GRADIENT:
            self._weight_gradient(planned)
        elif kind is Kind.UPDATE:
            self._update(planned)
        else:
            self._recompute(planned)
        self.cursor.advance(planned)

    def awaited(self, operation: Operation) -> list[BackwardId]:
        """Messages that an operation takes from a neighbor."""
        rules = self.cursor.rules
        if sender_of(operation, self.stage.index, rules.num_stages, rules.segments) is None:
            return []
        if operation.kind is Kind.BACKWARD:
            return [(self.cursor.start + operation.minibatch, operation.microbatch)]
        return [*self._microbatches(operation)]

    def _microbatches(self, operation: Operation) -> list[MicrobatchId]:
        t = self.cursor.start + operation.minibatch
        return [(t, j) for j in operation.covers(self._num_microbatches)]

    # -- forward -------------------------------------------------------------------------------------------------

    def _forward(self, planned: PlannedOperation) -> None:
        read, operation = self.cursor.read(planned), planned.operation
        microbatch = self.cursor.start + operation.minibatch, operation.microbatch or 0
        targets = self._targets(microbatch) if self._last else None  # before the wait for the activations
        inputs = self._next_input(microbatch) if self._first else self._received(operation, microbatch)
        with self.stage.clock.computing():
            inputs = self._decoded(operation.kind, microbatch, inputs)
            outputs = self.stage.forward(microbatch, inputs, read, planned.activations, targets, store=self._stores)
            outputs = self._encoded(operation.kind, microbatch, outputs)
        if self._last:
            self._minibatches[microbatch[0]].losses[microbatch[1]] = outputs[0]
            return
        with self.stage.clock.waiting("send", operation):
            self._ports.send(Kind.FORWARD, microbatch, outputs)
        if self._first and microbatch[1] == self._num_microbatches - 1:
            self._feed.prepare()

    def _encoded(self, kind: Kind, message: BackwardId, tensors: Tensors) -> Tensors:
        return tensors if self._messages is None else self._messages.encode(kind, message, tensors)

    def _decoded(self, kind: Kind, message: BackwardId, tensors: Tensors) -> Tensors:
        return tensors if self._messages is None else self._messages.decode(kind, message, tensors)

    def _received(self, operation: Operation, message: BackwardId) -> Tensors:
        with self.stage.clock.waiting("recv", operation):
            return self._ports.receive(operation.kind, message)

    def _next_input(self, microbatch: MicrobatchId) -> Tensors:
        t, j = microbatch
        if t not in self._inputs:
            self._inputs[t] = dict(enumerate(split(self._feed.inputs(), self._num_microbatches)))
        inputs = self._inputs[t].pop(j)
        if not self._inputs[t]:
            del self._inputs[t]
        return inputs

    def _targets(self, microbatch: MicrobatchId) -> WeightedTargets:
        t, j = microbatch
        if t not in self._minibatches:
            whole, loss = self._feed.targets(), self.stage.loss
            assert loss is not None
            counts = [count_of(loss, target) for target in split(whole.on_host, self._num_microbatches)]
            targets = split(whole.on_device, self._num_microbatches)
            self._minibatches[t] = _Minibatch(counts, targets)
        minibatch = self._minibatches[t]
        return WeightedTargets(minibatch.targets[j], microbatch_weight(minibatch.counts, j))

    # -- recomputation and backward ------------------------------------------------------------------------------

    def _recompute(self, planned: PlannedOperation) -> None:
        read, kind = self.cursor.read(planned), planned.operation.kind
        microbatches = self._microbatches(planned.operation)
        inputs: Sequence[Tensors | None] = [None] * len(microbatches)
        if not self._stores:
            inputs = [self._ports.receive(kind, message) for message in self.awaited(planned.operation)]
        with self.stage.clock.computing():
            results = []
            for microbatch, received in zip(microbatches, inputs, strict=True):
                tensors = None if received is None else self._decoded(kind, microbatch, received)
                results.append(self.stage.recompute(microbatch, tensors, read, planned.activations))
            if self._relays:
                results = [self._encoded(kind, *each) for each in zip(microbatches, results, strict=True)]
        if self._relays:
            for microbatch, outputs in zip(microbatches, results, strict=True):
                self._ports.send(kind, microbatch, outputs)

    def _backward(self, planned: PlannedOperation) -> None:
        read, operation, averaging = self.cursor.read(planned), planned.operation, self._ports.averaging
        whole = self.cursor.start + operation.minibatch, operation.microbatch
        received = None if self._last else self._received(operation, whole)
        final = not self._splits and self._completes(operation)
        # gradients can go to the other replicas during the last backward of a minibatch
        self.stage.on_gradient_ready = averaging.put if averaging is not None and final else None
        with self.stage.clock.computing():
            if received is not None:
                received = self._decoded(operation.kind, whole, received)
            gradients = self.stage.backward(self._microbatches(operation), received, read)
            sent = self._encoded(operation.kind, whole, gradients)
        if final:
            self.stage.complete_gradients()
        if not self._first:
            if self.stage.scaler is not None and not self.cursor.rules.decides_updates_together:
                self._largest_sent.append(largest(gradients[:-1]))  # the last one is the factor
            with self.stage.clock.waiting("send", operation):
                self._ports.send(Kind.BACKWARD, whole, sent)

    def _weight_gradient(self, planned: PlannedOperation) -> None:
        read = self.cursor.read(planned)
        (microbatch,) = self._microbatches(planned.operation)
        with self.stage.clock.computing():
            self.stage.weight_gradient(microbatch, read)
        if self._completes(planned.operation):
            self.stage.complete_gradients()

    def _completes(self, operation: Operation) -> bool:
        """True if a backward, or its W, is the last one of its minibatch."""
        t = operation.minibatch
        done = self._went_back.pop(t, 0) + len(operation.covers(self._num_microbatches))
        if done < self._num_microbatches:
            self._went_back[t] = done
        return done == self._num_microbatches

    # -- replicas that train alone -------------------------------------------------------------------------------

    def bring_in(self) -> bool:
        """Takes what is due of other replicas; False while, in one process, one of them has yet to give its part."""
        weights, losses = self.stage.replica_weights, self._late_losses
        return (weights is None or weights.bring_in()) and (losses is None or losses.report())

    def settle(self) -> Iterator[None]:
        """After the list, takes what is left of other replicas, and has evaluations read their mean.

        Yields where other replicas in this process have to come to the same point first.
        """
        self.bring_in()
        if self._late_losses is not None:
            self._late_losses.report(drained=True)
        if self.stage.replica_weights is not None:
            yield from self.stage.replica_weights.mean()

    # -- update --------------------------------------------------------------------------------------------------

    def ready_to_update(self) -> bool:
        """Exchanges gradients before the next update, as far as the other stages are; True once that is complete."""
        self._exchange = self._exchange or self._exchange_gradients()
        return next(self._exchange, True)

    def _exchange_gradients(self) -> Iterator[bool]:
        """Completes the gradients of an update with the parts of other stages and replicas.

        1. The gradients of weights that stages share are summed over these stages.
        2. Gradients are averaged over the replicas of the stage.
        3. If the update depends on the gradients of all stages, their norms are collected.

        Each step first offers this stage's part, and then yields False until all other stages have offered theirs.
        Between processes it waits for them instead. A drain may cut the round short meanwhile.
        """
        stage, ports = self.stage, self._ports
        self._losses = self._own_losses()
        if stage.tied:
            ports.tied.offer(stage.index, stage.tied_gradients)
            while (totals := ports.tied.take(stage.index)) is None:
                yield False
            stage.take_over(totals)
        if ports.averaging is not None:
            ports.averaging.offer(self._round, stage.replica, RoundGradients(stage.gradients.tensors, self._losses))
            with stage.clock.waiting("recv", self._next_update):
                while (averages := ports.averaging.take(self._round)) is None:
                    yield False
            stage.gradients.put(averages.gradients)
            self._losses = averages.losses
        if self._clip_norm is None and stage.scaler is None:
            return
        if not self.cursor.rules.decides_updates_together:
            self._squared_norms = [squared_norm(stage.gradients.tensors)]
            return
        own = squared_norm(stage.counted(stage.gradients.tensors))
        while (norms := ports.norms(self._round, own)) is None:
            yield False
        self._squared_norms = norms

    def _update(self, planned: PlannedOperation) -> None:
        if not self.ready_to_update():
            raise InvariantError(f"stage {self.stage.index} updates before it has the gradients of other stages")
        self._exchange = None
        t, this = self.cursor.start + planned.operation.minibatch, self._round
        gradients = self._gradients_to_apply()
        with self.stage.clock.computing():
            self.stage.update(t, gradients, keep=not planned.releases, steady=this.first >= self.cursor.rules.steady)
            if self.stage.replica_weights is not None:
                self.stage.replica_weights.updated()
        self.stage.optimizer.updates = t + 1
        if self._last:
            if self._late_losses is not None:
                minibatches = range(self.cursor.start + this.first, self.cursor.start + this.first + this.count)
                self._late_losses.add(minibatches, self._losses)
            elif self.stage.replica == 0:
                for k, loss in enumerate(self._losses, start=self.cursor.start + this.first):
                    self._hooks.on_step(k, loss)
            if not self._first:
                self._feed.prepare()

    @property
    def _next_update(self) -> Operation:
        assert self.next is not None
        return self.next

    @property
    def _round(self) -> Round:
        """The minibatches of the update that comes next."""
        return Round.ending(self._replicas, self.stage.index, self._next_update.minibatch)

    def _own_losses(self) -> list[StepLoss]:
        """Loss of this replica's minibatch of the round; empty without one, or if the loss is in another stage."""
        own = self._round.own(self.stage.replica)
        if not self._last or own is None:
            return []
        minibatch = self._minibatches.pop(self.cursor.start + own)
        return [step_loss([minibatch.losses[j] for j in range(self._num_microbatches)], minibatch.counts)]

    def _gradients_to_apply(self) -> dict[str, Tensor]:
        """Gradients to apply, clipped; empty if the loss scale was too large."""
        gradients, norms = self.stage.gradients.take(), self._squared_norms
        if self.stage.scaler is not None:
            with self._hooks.waiting("its device"):  # which may wait for a message
                found = numbers([*norms, *self._largest_sent])
            self._largest_sent.clear()
            if not self.stage.scaler.passes(found):
                return {}
            norms = [torch.tensor(norm, dtype=torch.float64) for norm in found[: len(norms)]]
        return clipped(gradients, norms, self._clip_norm) if self._clip_norm is not None else gradients
