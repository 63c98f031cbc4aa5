"""Runs the operation list of one stage. Both executors share this code, so they compute the same bits."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from pipetrain.data.loader import split
from pipetrain.device_queue import numbers
from pipetrain.executors.clipping import Clipping, clipped, squared_norm
from pipetrain.executors.feed import Feed, to_device
from pipetrain.executors.hooks import RunHooks
from pipetrain.executors.read_cursor import ReadCursor
from pipetrain.executors.replicas.averaging import AveragedGradients, LocalGradients, Round
from pipetrain.losses import StepLoss, count_of, microbatch_weight, step_loss
from pipetrain.program.planned_operations import PlannedOperation
from pipetrain.program.weight_reads import WeightRead
from pipetrain.schedules import Kind, Operation
from pipetrain.stage.module import MicrobatchId
from pipetrain.stage.stage import Stage, WeightedTargets
from pipetrain.tensors import Tensors

BackwardId = tuple[int, int | None]
"""(minibatch since the start of the run, microbatch; None if all go back together)."""


class Ports(Protocol):
    """A stage's connections to its neighbors; a port takes and gives dense tensors."""

    def receive_activations(self, microbatch: MicrobatchId) -> Tensors:
        """Activations of the microbatch from the previous stage, the next message from there; waits for it."""
        ...

    def send_activations(self, microbatch: MicrobatchId, tensors: Tensors) -> None:
        """Sends outputs to the next stage; does not wait."""
        ...

    def receive_gradients(self, microbatch: BackwardId) -> Tensors:
        """The gradients of a backward's floating-point outputs, microbatch by microbatch; waits for them."""
        ...

    def send_gradients(self, microbatch: BackwardId, tensors: Tensors) -> None:
        """Sends gradients of the floating-point inputs to the previous stage; does not wait."""
        ...

    def receive_recomputed(self) -> Tensors:
        """Outputs that the previous stage of the segment recomputed for the next microbatch."""
        ...

    def send_recomputed(self, tensors: Tensors) -> None:
        """Sends recomputed outputs to the next stage."""
        ...

    def put_gradient(self, name: str, gradient: Tensor) -> None:
        """Takes a gradient of the round that ends next, as soon as it is complete; it may not change any more."""
        ...

    def offer_round(self, this: Round, found: LocalGradients) -> None:
        """Offers this replica's part of a round to the other replicas of the stage; does not wait."""
        ...

    def found(self, this: Round) -> AveragedGradients:
        """Averages over all replicas in the round; waits for them."""
        ...

    def offer_norm(self, norm: Tensor) -> None:
        """Offers this stage's squared gradient norm of the next minibatch to all stages."""
        ...

    def norms(self) -> list[Tensor]:
        """The squared gradient norms of all stages in order, of the minibatch offered last; waits for all."""
        ...

    def offer_tied(self, gradients: Mapping[str, Tensor]) -> None:
        """Offers this stage's part of the gradients of shared weights, by full name, to the stages that share them."""
        ...

    def tied_totals(self) -> Mapping[str, Tensor]:
        """The sums of these parts over the stages that share each weight; waits for them."""
        ...


@dataclass
class _Minibatch:
    """Counts, targets and losses that the last stage keeps of a minibatch until its update."""

    counts: list[int]
    targets: list[Tensors]
    losses: list[Tensor] = field(default_factory=list)


class StageRunner:
    """Runs the operation list of one stage between two drains, one operation at a time.

    Args:
        cursor: the stage and its list.
        ports: to its neighbors.
        feed: the data that it takes.
        clipping: of its gradients.
        hooks: callbacks of the run.

    Attributes:
        has_summed_tied: True if gradients of shared weights are summed over all stages for the next update.
        has_averaged: True if gradients are averaged over all replicas for the next update.
    """

    def __init__(
        self, cursor: ReadCursor[Stage], ports: Ports, feed: Feed, clipping: Clipping | None, hooks: RunHooks
    ) -> None:
        self.cursor = cursor
        self.stage = cursor.stage
        self.clipping = clipping
        self._ports = ports
        self._feed = feed
        self._hooks = hooks
        index, rules = cursor.stage.index, cursor.rules
        self._num_microbatches = rules.num_microbatches
        self._steady = rules.steady
        # what an update does with its gradient depends on those of all stages
        decides_together = rules.schedule.synchronous and rules.replicas.even
        self.needs_global_norm = decides_together and (clipping is not None or self.stage.scaler is not None)
        self._replicas = rules.replicas
        self._averages = rules.replicas.counts[index] > 1
        self._first = index == 0
        self._last = index == rules.num_stages - 1
        self._stores = rules.segments is not None and rules.segments.begins(index)
        self._relays = rules.segments is not None and not rules.segments.ends(index)
        self._inputs: list[Tensors] = []
        self._minibatches: dict[int, _Minibatch] = {}
        self._norm: Tensor | None = None
        self._offered_tied = False
        self.has_summed_tied = False
        self._offered_round = False
        self.has_averaged = not self._averages
        self._losses: list[StepLoss] = []

    @property
    def next(self) -> Operation | None:
        """The operation to carry out next; None at the end of the list."""
        return self.cursor.next.operation if self.cursor.next is not None else None

    def step(self) -> None:
        """Carries out the next operation."""
        planned = self.cursor.next
        assert planned is not None, "the list has ended"
        kind = planned.operation.kind
        self._hooks.on_operation(planned.operation)
        if kind is Kind.FORWARD:
            self._forward(planned)
        elif kind is Kind.BACKWARD:
            self._backward(planned)
        elif kind is Kind.UPDATE:
            self._update(planned)
        else:
            self._recompute(planned)
        self.cursor.advance(planned)
        if kind is Kind.BACKWARD and self.next is not None and self.next.kind is Kind.UPDATE:
            self.stage.complete_gradients()

    def _microbatches(self, operation: Operation) -> list[MicrobatchId]:
        t = self.cursor.start + operation.minibatch
        return [(t, j) for j in operation.covers(self._num_microbatches)]

    # -- forward -------------------------------------------------------------------------------------------------

    def _forward(self, planned: PlannedOperation) -> None:
        read = self.cursor.read(planned)
        (microbatch,) = self._microbatches(planned.operation)
        if self._last:
            self._forward_loss(planned, microbatch, read)
            return
        inputs = self._received(planned.operation, microbatch)
        with self.stage.clock.computing():
            outputs = self.stage.forward(microbatch, inputs, read, planned.activations, store=self._stores)
        with self.stage.clock.waiting("send", planned.operation):
            self._ports.send_activations(microbatch, outputs)
        if self._first and microbatch[1] == self._num_microbatches - 1:
            self._feed.prepare()

    def _forward_loss(self, planned: PlannedOperation, microbatch: MicrobatchId, read: WeightRead) -> None:
        minibatch = self._open(planned.operation.minibatch)  # before the wait for the activations
        inputs = self._received(planned.operation, microbatch)
        j = microbatch[1]
        targets = WeightedTargets(minibatch.targets[j], microbatch_weight(minibatch.counts, j))
        with self.stage.clock.computing():
            loss = self.stage.forward_loss(microbatch, inputs, targets, read, planned.activations, store=self._stores)
        minibatch.losses.append(loss)

    def _received(self, operation: Operation, microbatch: MicrobatchId) -> Tensors:
        if self._first:
            return self._next_input(microbatch)
        with self.stage.clock.waiting("recv", operation):
            return self._ports.receive_activations(microbatch)

    def _next_input(self, microbatch: MicrobatchId) -> Tensors:
        if microbatch[1] == 0:
            self._inputs = split(self._feed.inputs(), self._num_microbatches)
        return self._inputs[microbatch[1]]

    def _open(self, t: int) -> _Minibatch:
        if t not in self._minibatches:
            on_host, loss = self._feed.host_targets(), self.stage.loss
            assert loss is not None
            counts = [count_of(loss, target) for target in split(on_host, self._num_microbatches)]
            targets = split(to_device(on_host, self.stage.device), self._num_microbatches)
            self._minibatches[t] = _Minibatch(counts, targets)
        return self._minibatches[t]

    # -- recomputation and backward ------------------------------------------------------------------------------

    def _recompute(self, planned: PlannedOperation) -> None:
        read = self.cursor.read(planned)
        microbatches = self._microbatches(planned.operation)
        inputs = [None if self._stores else self._ports.receive_recomputed() for _ in microbatches]
        with self.stage.clock.computing():
            results = [
                self.stage.recompute(microbatch, tensors, read, planned.activations)
                for microbatch, tensors in zip(microbatches, inputs, strict=True)
            ]
        for outputs in results if self._relays else []:
            self._ports.send_recomputed(outputs)

    def _backward(self, planned: PlannedOperation) -> None:
        read, operation = self.cursor.read(planned), planned.operation
        whole = self.cursor.start + operation.minibatch, operation.microbatch
        with self.stage.clock.waiting("recv", operation):
            received = None if self._last else self._ports.receive_gradients(whole)
        self.stage.on_gradient_ready = self._ports.put_gradient if self._completes(operation) else None
        with self.stage.clock.computing():
            gradients = self.stage.backward(self._microbatches(operation), received, read, planned.activations)
        if not self._first:
            with self.stage.clock.waiting("send", operation):
                self._ports.send_gradients(whole, gradients)

    def _completes(self, operation: Operation) -> bool:
        """True if gradients can go to the other replicas during this backward, the last of its minibatch."""
        last = operation.covers(self._num_microbatches)[-1] == self._num_microbatches - 1
        return self._averages and last

    # -- update --------------------------------------------------------------------------------------------------

    def _update(self, planned: PlannedOperation) -> None:
        t, this = self.cursor.start + planned.operation.minibatch, self.round
        self.sum_tied()
        self.average()
        gradients = self._applied()
        self._offered_tied = self.has_summed_tied = self._offered_round = False
        self.has_averaged = not self._averages
        with self.stage.clock.computing():
            self.stage.update(t, gradients, keep=not planned.releases, steady=this.first >= self._steady)
        self.stage.optimizer.updates = t + 1
        if self._last:
            losses = self._losses if self._averages else self._own_losses(this)
            if self.stage.replica == 0:
                for k, loss in enumerate(losses, start=self.cursor.start + this.first):
                    self._hooks.on_step(k, loss)
            if not self._first:
                self._feed.prepare()

    @property
    def round(self) -> Round:
        """The minibatches of the update that comes next."""
        return Round.ending(self._replicas, self.stage.index, self._next_update.minibatch)

    @property
    def _next_update(self) -> Operation:
        assert self.next is not None
        return self.next

    def _own_losses(self, this: Round) -> list[StepLoss]:
        """Loss of this replica's minibatch; empty without one, or if the loss is in another stage."""
        own = this.own(self.stage.replica)
        if not self._last or own is None:
            return []
        minibatch = self._minibatches.pop(own)
        return [step_loss(minibatch.losses, minibatch.counts)]

    def offer_round(self) -> None:
        """Before an update: offers this replica's part to the other replicas, once."""
        if self._averages and not self._offered_round:
            this = self.round
            self._ports.offer_round(this, LocalGradients(self.stage.gradients.tensors, self._own_losses(this)))
            self._offered_round = True

    def average(self) -> None:
        """Before an update: replaces this replica's gradients by the averages, once."""
        if not self.has_averaged:
            self.offer_round()
            with self.stage.clock.waiting("recv", self._next_update):
                found = self._ports.found(self.round)
            self.stage.gradients.put(found.gradients)
            self._losses = found.losses
            self.has_averaged = True

    def offer_tied(self) -> None:
        """Before an update: offers this stage's part of the gradients of shared weights, once."""
        if self.stage.shares_weights and not self._offered_tied:
            self._ports.offer_tied(self.stage.tied_gradients)
            self._offered_tied = True

    def sum_tied(self) -> None:
        """Before an update: replaces the gradients of shared weights by their sums over all stages, once."""
        if self.stage.shares_weights and not self.has_summed_tied:
            self.offer_tied()
            self.stage.take_over(self._ports.tied_totals())
            self.has_summed_tied = True

    def offer_norm(self) -> None:
        """Before an update that clips over all stages: offers this stage's part of the norm, once."""
        if self._norm is None:
            self.sum_tied()
            self.average()
            self._norm = squared_norm(self.stage.counted(self.stage.gradients.tensors))
            self._ports.offer_norm(self._norm)

    def _applied(self) -> dict[str, Tensor]:
        """Gradients to apply, clipped; empty if the loss scale was too large."""
        scaler, clipping = self.stage.scaler, self.clipping
        if clipping is None and scaler is None:
            return self.stage.gradients.take()
        norms = self._norms()
        gradients = self.stage.gradients.take()
        if scaler is not None:
            with self._hooks.waiting("its device"):  # which may wait for a message
                found = numbers(norms)
            if not scaler.passes(found):
                return {}
            norms = [torch.tensor(norm) for norm in found]
        return clipped(gradients, norms, clipping.limit) if clipping is not None else gradients

    def _norms(self) -> list[Tensor]:
        """The squared norms that decide about this update: of all stages, or this one's."""
        if not self.needs_global_norm:
            return [squared_norm(self.stage.gradients.tensors)]
        self.offer_norm()
        self._norm = None
        return self._ports.norms()
