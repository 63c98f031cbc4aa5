"""Carries out F, R, B, W and U on one stage: its layers, computing with the weights that the method names."""

import itertools
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from typing_extensions import override

from pipetrain.engine.device_queue import queues
from pipetrain.engine.errors import ConfigError
from pipetrain.engine.losses import microbatch_loss, on_device
from pipetrain.engine.models.chain import LayerChain
from pipetrain.engine.models.ties import Tie, layers_of_stage
from pipetrain.engine.program.planned_operations import Activations
from pipetrain.engine.program.weight_reads import WeightRead
from pipetrain.engine.stage.base import BaseStage, Training
from pipetrain.engine.stage.gradients import GradientReadyHooks, LossScaler, OnGradient
from pipetrain.engine.stage.measurements import ActivationBytes
from pipetrain.engine.stage.module import MicrobatchId, StageModule, leaf_inputs, non_leaf_inputs
from pipetrain.engine.stage.recurrent_state import State
from pipetrain.engine.stage.replica_weights import Exchange
from pipetrain.engine.stage.saved_tensors import CastRecognition, ForwardGraph, SavedTensors
from pipetrain.engine.stage.split_layers import SplitLayers
from pipetrain.engine.tensors import Tensors, storage_pointers
from pipetrain.engine.weights.average import WeightAverage
from pipetrain.engine.weights.versions import WeightVersion

_UNMEASURED = ActivationBytes()


@dataclass(frozen=True)
class WeightedTargets:
    """The targets of a microbatch, and n_j / n, the weight of its loss in the minibatch's."""

    tensors: Tensors
    loss_weight: float


@dataclass(eq=False)
class _InFlight:
    """State of a microbatch between its forward and its backward.

    Attributes:
        inputs: stored for a recomputation, if the stage recomputes from its own input.
        targets: on the last stage.
        carried: state of recurrent layers before the forward, for a recomputation.
        graph: None between a forward and its recomputation.
    """

    inputs: Tensors = ()
    targets: WeightedTargets | None = None
    carried: State = ()
    graph: ForwardGraph | None = None

    @property
    def bytes(self) -> int:
        """Bytes of the activations."""
        if self.graph is not None:
            return self.graph.bytes.total(self.inputs)
        return _UNMEASURED.total([*self.inputs, *itertools.chain.from_iterable(self.carried)])


class Stage(BaseStage):
    """One stage of the pipeline: the layers of the chain in `bounds`, the last one exclusive."""

    message_bytes = 0
    """Bytes of sent messages that may be under way, which count with the activations."""
    splits_backward = False
    """True if B leaves the gradients of weights to W, as far as the layers allow."""

    def __init__(
        self,
        index: int,
        chain: LayerChain,
        bounds: tuple[int, int],
        training: Training,
        replica: int = 0,
        ties: tuple[Tie, ...] = (),
    ) -> None:
        first, last = bounds
        ends = last == len(chain)
        self.loss = on_device(training.loss, training.device) if ends else None
        self.ties = ties
        self.replica = replica
        self.index = index
        layers = layers_of_stage(chain, bounds, self.copied)
        self.layers = f"{first}-{last - 1}"
        self.full_names = {
            f"layers.{i - first}.{local}": full for i in range(first, last) for local, full in chain.names(i).items()
        }  # by identity, so before a device replaces buffers
        self.module = StageModule(layers, first, training.seed, training.arithmetic, training.device, ends=ends)
        self.carried = self.module.carried
        self.scaler = LossScaler() if training.arithmetic.precision == "fp16" else None  # whose gradients underflow
        super().__init__(index, dict(self.module.named_parameters()), training)
        self._in_flight: dict[MicrobatchId, _InFlight] = {}
        self._between_b_and_w: dict[MicrobatchId, ForwardGraph] = {}
        self._bytes_in_flight = 0
        self._newest_leaves: dict[str, Tensor] | None = None
        self._activation_bytes: dict[tuple[torch.Size, ...], ActivationBytes] = {}
        self._casts = CastRecognition()
        self._split_layers = SplitLayers(self.module, training.arithmetic)
        self._aliased_outputs: dict[tuple[torch.Size, ...], frozenset[int]] = {}
        self._changes_inputs: bool | None = None  # unknown before the first forward
        self._inputs_as_leaves: set[tuple[torch.Size, ...]] = set()
        """Shapes of inputs that autograd gets as leaves: no layer changes them, and gradients have their strides."""
        self._ready_hooks = GradientReadyHooks(self.full_names)
        self.on_gradient_ready: OnGradient | None = None
        self._averaging = training.averaging

    # -- forward and recomputation -------------------------------------------------------------------------------

    def forward(
        self,
        microbatch: MicrobatchId,
        inputs: Tensors,
        read: WeightRead,
        activations: Activations,
        targets: WeightedTargets | None = None,
        *,
        store: bool,
    ) -> Tensors:
        """F: the stage's outputs for `inputs`, detached; on the last stage the microbatch's mean loss.

        With `store`, keeps the inputs for a recomputation.
        """
        record = _InFlight(targets=targets)
        if store:
            record.inputs = inputs if self._changes_inputs is False else tuple(tensor.clone() for tensor in inputs)
        if activations is Activations.DROPPED:
            record.carried = self.carried.of(microbatch[1])
        graph = self._compute(microbatch, inputs, targets, read, activations)
        record.graph = None if activations is Activations.DROPPED else graph
        self._in_flight[microbatch] = record
        self.measurements.forward[microbatch[0]].append(read.version)
        self._hold(record.bytes)
        detached = enumerate([output.detach() for output in graph.outputs])
        return tuple([each.clone() if r in graph.aliased else each for r, each in detached])

    def recompute(
        self, microbatch: MicrobatchId, inputs: Tensors | None, read: WeightRead, activations: Activations
    ) -> Tensors:
        """R: the outputs again, detached; draws at random what F drew, and leaves the buffers as they are.

        `inputs` are those that the previous stage recomputed; None if this stage stored its own.
        """
        record = self._in_flight[microbatch]
        with self.module.scratch_buffers(), self.carried.aside({microbatch[1]: record.carried}):
            graph = self._compute(
                microbatch, record.inputs if inputs is None else inputs, record.targets, read, activations
            )
        stored = record.bytes
        record.graph = graph
        self._hold(record.bytes - stored)
        return tuple(output.detach() for output in graph.outputs)

    def _compute(
        self,
        microbatch: MicrobatchId,
        inputs: Tensors,
        targets: WeightedTargets | None,
        read: WeightRead,
        activations: Activations,
    ) -> ForwardGraph:
        version, leaves, rebound = self._read(read, activations)
        weights, shapes = version.tensors, tuple(tensor.shape for tensor in inputs)
        measured = shapes in self._activation_bytes or activations is Activations.DROPPED
        casts = self._casts.of_forward(weights, shapes) if rebound and self.module.arithmetic.mixed else None
        saved = SavedTensors(weights, casts) if rebound or not measured else None
        differentiable = [tensor for tensor in inputs if tensor.is_floating_point()] if self.index > 0 else []
        input_leaves: Sequence[Tensor] = ()
        input_gradients: list[Tensor | None] = []
        if shapes in self._inputs_as_leaves:
            arrived, input_leaves = leaf_inputs(inputs, differentiable)
        else:
            arrived, input_gradients = non_leaf_inputs(inputs, differentiable)
        with saved.hooks() if saved else nullcontext():
            versions = [tensor._version for tensor in arrived]
            with self.module.using_weights(leaves, rebound=rebound):
                forward = partial(self.module.forward, *arrived, microbatch=microbatch)
                splits = self.splits_backward and activations is not Activations.DROPPED
                outputs, put_aside = self._split_layers.run(forward, arrived) if splits else (forward(), None)
            aliased = self._aliased_outputs.get(shapes)
            if aliased is None:
                aliased = self._aliased_outputs[shapes] = self._aliases(outputs, weights)
                self._changes_inputs = self._changes_inputs or versions != [tensor._version for tensor in arrived]
            if targets is not None:
                assert self.loss is not None
                outputs = (microbatch_loss(self.loss, outputs, targets.tensors, targets.loss_weight),)
        if saved:
            self._activation_bytes[shapes] = saved.activation_bytes(inputs)
        graph = ForwardGraph(
            inputs=differentiable,
            shapes=shapes,
            input_gradients=input_gradients,
            input_leaves=input_leaves,
            outputs=outputs,
            leaves=leaves,
            version=None if rebound else version,
            saved=saved,
            bytes=self._activation_bytes.get(shapes, _UNMEASURED),
            aliased=aliased,
            put_aside=put_aside,
        )
        if rebound:
            graph.unbind()
        return graph

    def _read(self, read: WeightRead, activations: Activations) -> tuple[WeightVersion, dict[str, Tensor], bool]:
        """The weights that a forward reads, leaves over them, and True if its backward must be given other weights.

        Where one version is allowed, all updates are in place: the backward finds the newest weights in the memory that
        the forward read, unless the graph refers to copies.
        """
        if read.transform is not None:  # no update changes what a transform has made
            version = WeightVersion(read.version, self.weights.read(read.version, read.transform))
        else:
            version = self.weights.version(read.version)
        newest = version is self.weights.newest
        in_place = newest and self.versions_allowed == 1 and not self.module.copies_weights
        rebound = activations is Activations.REBOUND and not in_place
        shares = newest and not rebound and activations is not Activations.DROPPED
        return version, self._shared_leaves() if shares else self.leaves(version.tensors), rebound

    def _aliases(self, outputs: Tensors, weights: Mapping[str, Tensor]) -> frozenset[int]:
        """Indices of outputs that share memory with a weight or a buffer.

        An update may write there before they are sent. That depends on the layers, so the first outputs of each shape
        show it.
        """
        held = storage_pointers([*weights.values(), *self.buffers.values()])
        return frozenset(r for r, each in enumerate(outputs) if each.numel() and storage_pointers([each]) <= held)

    def _shared_leaves(self) -> dict[str, Tensor]:
        """Leaves over the newest weights, one set for all graphs: updates in place leave their memory where it is."""
        if self._newest_leaves is None:
            self._newest_leaves = self.leaves(self.weights.newest.tensors)
            self.module.set_default_weights(self._newest_leaves)
        return self._newest_leaves

    @override
    def update(self, minibatch: int, gradients: dict[str, Tensor], *, keep: bool, steady: bool) -> None:
        if keep and self._newest_leaves is not None:
            # their memory belongs to an older version from here on, whose readers release it
            self._newest_leaves = None
            self.module.set_default_weights(None)
        super().update(minibatch, gradients, keep=keep, steady=steady)

    def _hold(self, more: int) -> None:
        """Counts `more` bytes of activations in flight."""
        self._bytes_in_flight += more
        peak = self.measurements.activation_bytes_peak
        self.measurements.activation_bytes_peak = max(peak, self._bytes_in_flight + self.message_bytes)

    def kept_outputs(self, minibatch: int, microbatch: int | None) -> set[int]:
        """Addresses of the outputs of a forward that are kept for its backward; none after a backward."""
        record = None if microbatch is None else self._in_flight.get((minibatch, microbatch))
        return storage_pointers(record.graph.outputs) if record is not None and record.graph is not None else set()

    # -- backward ------------------------------------------------------------------------------------------------

    def backward(self, microbatches: Sequence[MicrobatchId], gradients: Tensors | None, read: WeightRead) -> Tensors:
        """B: the gradients of the stage's floating-point inputs, zeros for None; adds to the minibatch's gradient.

        Where backwards split, it leaves what it can of the minibatch's gradient to W.

        `gradients` are those of the floating-point outputs of each microbatch in order; None on the last stage. If the
        loss is scaled, the factor comes last, here and in the result.
        """
        weights: Mapping[str, Tensor] = {}
        arriving = iter(self._rescaled(gradients or ()))
        input_gradients: list[Tensor] = []
        for microbatch in microbatches:
            record = self._in_flight.pop(microbatch)
            self._bytes_in_flight -= record.bytes
            graph = record.graph
            assert graph is not None
            if graph.version is None:
                weights = weights or self.weights.read(read.version, read.transform)
                graph.bind(weights)
            elif graph.version.number != read.version:
                raise RuntimeError(f"stage {self.index}: version {read.version} was overwritten before B read it")
            outputs = graph.floating_outputs
            if record.targets is not None:
                scale = self.scaler.scale if self.scaler is not None else 1.0
                output_gradients = [torch.full_like(outputs[0], record.targets.loss_weight * scale)]
            else:
                output_gradients = list(itertools.islice(arriving, len(outputs)))
            notify = self.on_gradient_ready if microbatch == microbatches[-1] else None
            with nullcontext() if notify is None else self._ready_hooks.notifying(notify, graph.leaves):
                input_gradients += self._backward(graph, output_gradients)
            self.measurements.backward[microbatch[0]].append(read.version)
            if graph.put_aside is not None:
                graph.keep_for_weights()
                self._between_b_and_w[microbatch] = graph
                self._hold(graph.put_aside.bytes)
        if self.scaler is not None:
            input_gradients.append(torch.full((), self.scaler.scale, device=self.device))
        return tuple(input_gradients)

    def weight_gradient(self, microbatch: MicrobatchId, read: WeightRead) -> None:
        """W: adds to the minibatch's gradient what B left to it, for the weights that B read."""
        graph = self._between_b_and_w.pop(microbatch)
        assert graph.put_aside is not None
        self._bytes_in_flight -= graph.put_aside.bytes
        if graph.version is None:
            # no operation of torch's own layers looks at them again
            reads = self._split_layers.read_weights
            graph.bind(self.weights.read(read.version, read.transform) if reads else self.weights.newest.tensors)
        self.attach_gradients(graph.leaves)
        graph.put_aside.backward(graph.leaves.values())
        self.gradients.harvest({*graph.put_aside.storages}, reuse_leaves=graph.leaves is self._newest_leaves)

    def _rescaled(self, gradients: Tensors) -> Tensors:
        """The arriving gradients, scaled by this stage's factor instead of the sender's."""
        if self.scaler is None or not gradients:
            return gradients
        *tensors, sent_with = gradients
        if queues(self.device):
            # the host would wait for the factor; both are powers of two, which float16 may not hold
            on_device = self.scaler.scale / sent_with
            return tuple((tensor.float() * on_device).to(tensor.dtype) for tensor in tensors)
        factor = self.scaler.scale / sent_with.item()
        return tuple(tensors if factor == 1.0 else torch._foreach_mul(tensors, factor))

    def complete_gradients(self) -> None:
        """Takes the factor of a scaled loss out of the sum, once the last microbatch of a minibatch went back."""
        if self.splits_backward:
            self.gradients.sort(self.weights.trainable)
        if self.scaler is not None and not self.gradients.empty:
            torch._foreach_mul_(list(self.gradients.tensors.values()), 1 / self.scaler.scale)

    def _backward(self, graph: ForwardGraph, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Backward through one graph."""
        self.attach_gradients(graph.leaves)
        # a layer that checkpoints itself reads the module's parameters again here
        with self.module.using_weights(graph.leaves):
            foreign_storages = graph.backward(gradients)
        may_be_leaves = not self._changes_inputs and not self.module.arithmetic.compiled
        if may_be_leaves and not graph.input_leaves and graph.inputs and graph.has_gradients_like_inputs:
            self._inputs_as_leaves.add(graph.shapes)
        self.gradients.harvest(foreign_storages, reuse_leaves=graph.leaves is self._newest_leaves)
        return graph.gradients_of_inputs()

    # -- evaluation and state --------------------------------------------------------------------------------------

    def evaluate(self, inputs: Tensors) -> Tensors:
        """The outputs in evaluation mode, of averaged or newest weights and the newest buffers; no state changes."""
        if self.messages is not None:
            inputs = self.messages.of_evaluation(inputs, sends=False)
        with nullcontext() if self.weights.average is None else self.module.using_weights(self.weights.evaluated):
            outputs = self.module.evaluate(*inputs)
        return outputs if self.messages is None else self.messages.of_evaluation(outputs, sends=True)

    def average_through(self, exchange: Exchange) -> None:
        """Averages its weights with those of its other replicas, whose mean evaluations read.

        Raises:
            ConfigError: the pipeline has no rule for this.
        """
        if self._averaging is None:
            raise ConfigError(
                "averaging=None: replicas that train alone need a rule, such as "
                "pipetrain.zoo.weight_averaging.WeightAveraging()"
            )
        self.weights.average = WeightAverage(None, self.weights.trainable)
        self.replica_weights = self._averaging.of_stage(self, exchange)

    @property
    def buffers(self) -> dict[str, Tensor]:
        """Local name -> buffer, such as a running mean; the tensors themselves."""
        return dict(self.module.named_buffers())

    @torch.no_grad()
    def take_buffers(self, buffers: Mapping[str, Tensor]) -> None:
        """Copies what another replica's buffers hold."""
        for name, buffer in self.buffers.items():
            buffer.copy_(buffers[name])

    @override
    def state(self) -> dict[str, Tensor]:
        return {self.full_names[local]: tensor for local, tensor in self.module.state_dict().items()}
