"""Carries out F, R, B and U on one stage: its layers, computing with the weights that the method names."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from pipetrain.losses import Loss, on_device
from pipetrain.models.chain import LayerChain
from pipetrain.program.planned_operations import Activations
from pipetrain.program.weight_reads import WeightRead
from pipetrain.stage.base import BaseStage, BuildOptimizer
from pipetrain.stage.module import Arrive, MicrobatchId, StageModule
from pipetrain.stage.saved_tensors import SavedTensors
from pipetrain.tensors import Tensors, storage_pointers
from pipetrain.weights.versions import WeightVersion

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class WeightedTargets:
    """The targets of a microbatch, and what its loss counts in that of the minibatch.

    Attributes:
        loss_weight: n_j / n.
    """

    tensors: Tensors
    loss_weight: float


@dataclass(eq=False)
class _Activations:
    """What a forward or recomputation computed, for the backward to go through.

    Attributes:
        gradients: of the inputs, once the backward has found them.
        made_bytes, input_bytes: kept of what it computed, and of what it was given.
        spoilt: whether it changed its inputs in place.
    """

    inputs: Tensors
    gradients: list[Tensor | None]
    outputs: Tensors
    leaves: dict[str, Tensor]
    version: WeightVersion | None
    number: int
    saved: SavedTensors | None
    made_bytes: int
    input_bytes: int
    spoilt: bool


@dataclass(eq=False)
class _InFlight:
    """What a stage keeps of a microbatch between its forward and its backward.

    Attributes:
        inputs: what a recomputation starts from, where the stage recomputes from its own input.
        targets: on the last stage.
        activations: empty between a forward and its recomputation.
    """

    inputs: Tensors = ()
    targets: WeightedTargets | None = None
    activations: _Activations | None = None

    @property
    def bytes(self) -> int:
        """Of the activations held."""
        stored = sum(tensor.nbytes for tensor in self.inputs)
        if self.activations is None:
            return stored
        return self.activations.made_bytes + max(stored, self.activations.input_bytes)


@dataclass(frozen=True)
class StageSpec:
    """Which part of a model a stage is, and where and how it computes.

    Attributes:
        index: r.
        bounds: the stage's layers in the chain, (first, last), the last exclusive.
        loss: on the last stage; None elsewhere.
        seed: what all random draws are keyed by.
        device: where the stage computes.
    """

    index: int
    bounds: tuple[int, int]
    loss: Loss | None = None
    seed: int = 0
    device: torch.device = _CPU


class Stage(BaseStage):
    """One stage of the pipeline.

    Args:
        spec: which part of the model it is.
        chain: the layer chain of the whole model, of which the stage keeps its own layers.
        build_optimizer: parameters by name -> the stage's optimizer.
    """

    def __init__(self, spec: StageSpec, chain: LayerChain, build_optimizer: BuildOptimizer) -> None:
        first, last = spec.bounds
        self.loss = on_device(spec.loss, spec.device) if spec.loss is not None else None
        self.module = StageModule(chain.layers[first:last], first, spec.seed).to(spec.device)
        self.full_names = {
            f"layers.{i - first}.{local}": full for i in range(first, last) for local, full in chain.names(i).items()
        }
        super().__init__(spec.index, dict(self.module.named_parameters()), build_optimizer, spec.device)
        self._in_flight: dict[MicrobatchId, _InFlight] = {}
        self._newest_leaves: dict[str, Tensor] | None = None
        self._saved_bytes: dict[tuple[torch.Size, ...], tuple[int, int]] = {}
        # whether the first layers work in place, and so on what a recomputation would start from; None: not known yet
        self._spoils_inputs: bool | None = None

    # -- forward and recomputation -------------------------------------------------------------------------------

    def forward(
        self, microbatch: MicrobatchId, inputs: Tensors, read: WeightRead, activations: Activations, *, store: bool
    ) -> Tensors:
        """F: the stage's outputs for `inputs`, detached.

        Args:
            microbatch: (minibatch since the start of the run, microbatch).
            inputs: what the stage before sent, or the data.
            read: the weights to read.
            activations: what becomes of them.
            store: whether to keep the inputs for a recomputation.
        """
        return self._forward(microbatch, inputs, read, activations, _InFlight(inputs if store else ()))

    def forward_loss(
        self,
        microbatch: MicrobatchId,
        inputs: Tensors,
        targets: WeightedTargets,
        read: WeightRead,
        activations: Activations,
        *,
        store: bool,
    ) -> Tensor:
        """F on the last stage: the microbatch's mean loss, detached; the arguments are those of `forward`."""
        record = _InFlight(inputs if store else (), targets)
        return self._forward(microbatch, inputs, read, activations, record)[0]

    def recompute(
        self, microbatch: MicrobatchId, inputs: Tensors | None, read: WeightRead, activations: Activations
    ) -> Tensors:
        """R: the outputs again, detached; draws at random what F drew, and leaves the buffers as they are.

        Args:
            microbatch, read, activations: as in the forward.
            inputs: what the stage before recomputed; null where this stage stored its own.
        """
        record = self._in_flight[microbatch]
        given = record.inputs if inputs is None else inputs
        with self.module.spare_buffers():
            record.activations = self._compute(microbatch, given, record.targets, read, activations)
        self._measure()
        return tuple(output.detach() for output in record.activations.outputs)

    def _forward(
        self, microbatch: MicrobatchId, inputs: Tensors, read: WeightRead, activations: Activations, record: _InFlight
    ) -> Tensors:
        if record.inputs and self._spoils_inputs is not False:
            record.inputs = tuple(tensor.clone() for tensor in inputs)
        computed = self._compute(microbatch, inputs, record.targets, read, activations)
        if record.inputs and self._spoils_inputs is None:
            self._spoils_inputs = computed.spoilt
            record.inputs = record.inputs if computed.spoilt else inputs
        record.activations = None if activations is Activations.DROPPED else computed
        self._in_flight[microbatch] = record
        self.measurements.forward.setdefault(microbatch[0], []).append(read.version)
        self._measure()
        return tuple(output.detach() for output in computed.outputs)

    def _compute(
        self,
        microbatch: MicrobatchId,
        inputs: Tensors,
        targets: WeightedTargets | None,
        read: WeightRead,
        activations: Activations,
    ) -> _Activations:
        version, tensors = self.weights.version(read.version), self.weights.read(read.version, read.transform)
        lasting = activations is Activations.KEPT and read.transform is None and version is self.weights.newest
        leaves = self._lasting_leaves(tensors) if lasting else self.leaves(tensors)
        shapes = tuple(tensor.shape for tensor in inputs)
        reread = activations is Activations.REBOUND
        unmeasured = shapes not in self._saved_bytes and activations is not Activations.DROPPED
        saved = SavedTensors(tensors) if reread or unmeasured else None
        with saved.hooks() if saved else nullcontext():
            arrived, gradients = self._arrived(inputs)
            versions = [tensor._version for tensor in arrived]
            with self.module.reading(leaves, reread):
                outputs: Tensors = self.module(*arrived, microbatch=microbatch)
            spoilt = versions != [tensor._version for tensor in arrived]
            if targets is not None:
                assert self.loss is not None
                outputs = (self.loss(*outputs, *targets.tensors),)
        if saved:
            self._saved_bytes[shapes] = saved.activation_bytes(inputs)
            saved.backward_weights = {} if reread else tensors
        if reread:
            # the graph holds the leaves: without this a prediction would live until its backward
            for leaf in leaves.values():
                leaf.data = torch.empty(0, dtype=leaf.dtype, device=leaf.device)
        # where the backward reads other weights, nothing here may keep these alive
        kept = None if reread else version
        sizes = self._saved_bytes.get(shapes, (0, 0))
        return _Activations(inputs, gradients, outputs, leaves, kept, version.number, saved, *sizes, spoilt)

    def _lasting_leaves(self, newest: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """One set for all that read the newest weights, since an update in place leaves the memory where it is."""
        if self._newest_leaves is None:
            self._newest_leaves = self.leaves(newest)
            self.module.hold(self._newest_leaves)
        return self._newest_leaves

    @override
    def update(self, minibatch: int, gradients: dict[str, Tensor], *, keep: bool, steady: bool) -> None:
        if keep and self._newest_leaves is not None:
            # of memory that is an older version's from here on, and goes with its readers
            self._newest_leaves = None
            self.module.hold(None)
        super().update(minibatch, gradients, keep=keep, steady=steady)

    def _arrived(self, inputs: Tensors) -> tuple[Tensors, list[Tensor | None]]:
        """The inputs as autograd is to see them, and where it will leave the gradients of the differentiable ones."""
        leaves = [tensor.detach().requires_grad_() for tensor in self._differentiable(inputs)]
        if not leaves:
            return inputs, []
        gradients: list[Tensor | None] = [None] * len(leaves)
        through = iter(Arrive.apply(gradients, *leaves))
        return tuple(next(through) if tensor.is_floating_point() else tensor for tensor in inputs), gradients

    def _differentiable(self, inputs: Tensors) -> list[Tensor]:
        return [tensor for tensor in inputs if tensor.is_floating_point()] if self.index > 0 else []

    def _measure(self) -> None:
        held = sum(record.bytes for record in self._in_flight.values())
        self.measurements.activation_bytes_peak = max(self.measurements.activation_bytes_peak, held)

    # -- backward ------------------------------------------------------------------------------------------------

    def backward(
        self,
        microbatches: Sequence[MicrobatchId],
        gradients: Tensors | None,
        read: WeightRead,
        activations: Activations,
    ) -> Tensors:
        """B: adds to the minibatch's gradient and returns that of the stage's floating-point inputs, zeros for None.

        Args:
            microbatches: one, or all of a minibatch in order.
            gradients: for each microbatch one for each floating-point output of the stage; null on the last stage.
            read: the weights to read.
            activations: of the forward or recomputation that it goes through.
        """
        tensors = self.weights.read(read.version, read.transform) if activations is Activations.REBOUND else {}
        found: list[Tensor] = []
        remaining = gradients
        for microbatch in microbatches:
            record = self._in_flight.pop(microbatch)
            assert record.activations is not None
            outputs = [output for output in record.activations.outputs if output.is_floating_point()]
            if remaining is None:
                assert record.targets is not None
                given: Tensors = (torch.full_like(outputs[0], record.targets.loss_weight),)
            else:
                given, remaining = remaining[: len(outputs)], remaining[len(outputs) :]
            found += self._backward(record.activations, list(zip(outputs, given, strict=True)), tensors, activations)
            self.measurements.backward.setdefault(microbatch[0], []).append(read.version)
        return tuple(found)

    def _backward(
        self,
        computed: _Activations,
        pairs: list[tuple[Tensor, Tensor]],
        tensors: Mapping[str, Tensor],
        activations: Activations,
    ) -> list[Tensor]:
        leaves = computed.leaves
        if activations is Activations.REBOUND:
            assert computed.saved is not None
            computed.saved.backward_weights = tensors
            for name, leaf in leaves.items():
                leaf.data = tensors[name]
        elif computed.version is None or computed.version.number != computed.number:
            raise RuntimeError(f"stage {self.index}: version {computed.number} was overwritten before B read it")
        outputs = [output for output, _ in pairs if output.requires_grad]
        given = [gradient for output, gradient in pairs if output.requires_grad]
        if outputs:
            self.gradients.lend(leaves)
            # a layer that checkpoints itself reads the module's parameters again here
            with self.module.reading(leaves):
                torch.autograd.backward(outputs, given)
            taken = storage_pointers([*given, *computed.gradients])
            self.gradients.collect(taken, more=leaves is self._newest_leaves)
        wanted = zip(self._differentiable(computed.inputs), computed.gradients, strict=True)
        return [torch.zeros_like(tensor) if gradient is None else gradient for tensor, gradient in wanted]

    # -- evaluation and state --------------------------------------------------------------------------------------

    def evaluate(self, inputs: Tensors) -> Tensors:
        """The newest weights and buffers in evaluation mode; no state changes."""
        return self.module.evaluate(*inputs)

    @override
    def state(self) -> dict[str, Tensor]:
        return {self.full_names[local]: tensor for local, tensor in self.module.state_dict().items()}
