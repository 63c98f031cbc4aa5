"""Carries out F, B and U on one stage: its layers, weight versions, optimizer and method."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pipetrain import wire
from pipetrain.audit import Audit
from pipetrain.clock import Clock
from pipetrain.losses import Loss
from pipetrain.models.chain import LayerChain
from pipetrain.optimizer import StageOptimizer
from pipetrain.saved import SavedTensors
from pipetrain.schedules import Read
from pipetrain.stage_module import Arrive, MicrobatchId, StageModule, Tensors
from pipetrain.weights import Weights, WeightTransform, WeightVersion


@dataclass(eq=False)
class _InFlight:
    """What a stage keeps of a microbatch between its forward and its backward."""

    inputs: Tensors
    outputs: Tensors
    leaves: dict[str, Tensor]
    version: WeightVersion | None
    number: int
    saved: SavedTensors | None
    activation_bytes: int
    gradient_of_loss: Tensor | None = None


class Stage:
    """One stage of the pipeline.

    Args:
        index: r.
        chain: the whole model's chain; only layers `first` .. `last` - 1 are kept.
        build_optimizer: parameters by name -> the stage's optimizer.
        loss: on the last stage, the loss; null elsewhere.
        seed: what all random draws are keyed by.
        device: where the stage computes.
    """

    def __init__(
        self,
        index: int,
        chain: LayerChain,
        first: int,
        last: int,
        build_optimizer: Callable[[dict[str, nn.Parameter]], StageOptimizer],
        loss: Loss | None,
        seed: int,
        device: torch.device,
    ) -> None:
        self.index = index
        self.device = device
        self.loss = loss.to(device) if isinstance(loss, nn.Module) else loss
        self.module = StageModule(chain.layers[first:last], first, seed).to(device)
        self.full_names = {
            f"layers.{i - first}.{local}": full for i in range(first, last) for local, full in chain.names(i).items()
        }
        parameters = dict(self.module.named_parameters())
        _separate(parameters)
        self._requires_grad = {name: parameter.requires_grad for name, parameter in parameters.items()}
        trainable = {name: parameter for name, parameter in parameters.items() if parameter.requires_grad}
        self.optimizer = build_optimizer(trainable)
        self.weights = Weights(parameters)
        self.clock = Clock(device)
        self.audit = Audit()
        self._in_flight: dict[MicrobatchId, _InFlight] = {}
        self.gradients: dict[str, Tensor] = {}
        self._summed: set[str] = set()
        self._activation_bytes: dict[tuple[torch.Size, ...], int] = {}

    @property
    def updates(self) -> int:
        """The updates that the newest weights have behind them."""
        return self.weights.newest.number

    # -- forward -------------------------------------------------------------------------------------------------

    def forward(self, microbatch: MicrobatchId, inputs: Tensors, read: Read, changes: bool) -> Tensors:
        """F: the stage's outputs for `inputs`, detached.

        Args:
            microbatch: (minibatch since the start of the run, microbatch).
            inputs: what the stage before sent, or the data.
            read: the weights to read.
            changes: whether the backward is to find other weights than these.
        """
        record = self._forward(microbatch, inputs, read, changes)
        return tuple(output.detach() for output in record.outputs)

    def forward_loss(
        self, microbatch: MicrobatchId, inputs: Tensors, targets: Tensors, share: float, read: Read, changes: bool
    ) -> Tensor:
        """F on the last stage: the microbatch's mean loss, detached; `share` is n_j / n, its share of the minibatch."""
        record = self._forward(microbatch, inputs, read, changes, targets)
        record.gradient_of_loss = torch.full_like(record.outputs[0], share)
        return record.outputs[0].detach()

    def _forward(
        self, microbatch: MicrobatchId, inputs: Tensors, read: Read, changes: bool, targets: Tensors | None = None
    ) -> _InFlight:
        version = self.weights.version(read.version)
        changed = _transformed(read, version, self.optimizer)
        if changed:
            self.weights.meter.watch(changed)
        tensors = {**version.tensors, **changed}
        leaves = {name: t.detach().requires_grad_(self._requires_grad[name]) for name, t in tensors.items()}
        inputs = tuple(self._arrived(tensor) for tensor in inputs)
        shapes = tuple(tensor.shape for tensor in inputs)
        saved = SavedTensors(tensors) if changes or shapes not in self._activation_bytes else None
        with saved.hooks() if saved else nullcontext():
            arrived = tuple(Arrive.apply(t) if t.requires_grad else t for t in inputs)
            with self.module.reading(leaves):
                outputs: Tensors = self.module(*arrived, microbatch=microbatch)
            if targets is not None:
                assert self.loss is not None
                outputs = (self.loss(*outputs, *targets),)
        if saved and not changes:
            saved.backward_weights = tensors
        if saved:
            self._activation_bytes[shapes] = saved.activation_bytes
        if changes:
            # the graph holds the leaves: without this a prediction would live until its backward
            for leaf in leaves.values():
                leaf.data = torch.empty(0, dtype=leaf.dtype, device=leaf.device)
        # where the backward reads other weights, nothing here may keep these alive
        kept = None if changes else version
        record = _InFlight(inputs, outputs, leaves, kept, version.number, saved, self._activation_bytes[shapes])
        self._in_flight[microbatch] = record
        self.audit.forward.setdefault(microbatch[0], []).append(version.number)
        held = sum(other.activation_bytes for other in self._in_flight.values())
        self.audit.activation_bytes_peak = max(self.audit.activation_bytes_peak, held)
        return record

    def _arrived(self, tensor: Tensor) -> Tensor:
        differentiable = self.index > 0 and tensor.is_floating_point()
        return tensor.detach().requires_grad_() if differentiable else tensor

    # -- backward ------------------------------------------------------------------------------------------------

    def backward(self, microbatch: MicrobatchId, gradients: Tensors | None, read: Read, changes: bool) -> Tensors:
        """B: adds to the minibatch's gradient and returns that of the stage's floating-point inputs, zeros for None.

        Args:
            microbatch: as in the forward.
            gradients: one for each floating-point output of the stage; null on the last stage.
            read, changes: as in the forward.
        """
        record = self._in_flight.pop(microbatch)
        version = record.version or self.weights.version(read.version)
        if changes:
            assert record.saved is not None
            record.saved.backward_weights = {
                **version.tensors,
                **_transformed(read, version, self.optimizer),
            }
        elif version.number != record.number:
            raise RuntimeError(f"{microbatch}: version {record.number} was overwritten before its backward read it")
        outputs, given = self._differentiable(record, gradients)
        inputs = [tensor for tensor in record.inputs if tensor.requires_grad]
        names = [name for name, leaf in record.leaves.items() if leaf.requires_grad]
        wanted = [*inputs, *(record.leaves[name] for name in names)]
        found: Sequence[Tensor | None] = [None] * len(wanted)
        if outputs and wanted:
            # a layer that checkpoints itself reads the module's parameters again here
            with self.module.reading(self._again(record)):
                found = torch.autograd.grad(outputs, wanted, given, allow_unused=True)
        self._accumulate(dict(zip(names, found[len(inputs) :], strict=True)), [*given, *found[: len(inputs)]])
        self.audit.backward.setdefault(microbatch[0], []).append(version.number)
        return tuple(
            torch.zeros_like(tensor) if gradient is None else gradient
            for tensor, gradient in zip(inputs, found[: len(inputs)], strict=True)
        )

    def _again(self, record: _InFlight) -> Mapping[str, Tensor]:
        if record.version is not None or record.saved is None:
            return record.leaves
        return {n: t.detach().requires_grad_(self._requires_grad[n]) for n, t in record.saved.backward_weights.items()}

    def _accumulate(self, found: dict[str, Tensor | None], others: Sequence[Tensor | None]) -> None:
        # autograd may return one tensor under several names, or the incoming gradient itself; optimizers write in place
        shared = {other.untyped_storage().data_ptr() for other in others if other is not None}
        for name, gradient in found.items():
            if gradient is None:
                continue
            pointer = gradient.untyped_storage().data_ptr()
            if name in self._summed:
                self.gradients[name].add_(gradient)
            elif name in self.gradients:
                self.gradients[name] = self.gradients[name] + gradient
                self._summed.add(name)
            else:
                self.gradients[name] = gradient.clone() if pointer in shared else wire.dense(gradient)
            shared.add(pointer)

    @staticmethod
    def _differentiable(record: _InFlight, gradients: Tensors | None) -> tuple[list[Tensor], list[Tensor]]:
        if gradients is None:
            assert record.gradient_of_loss is not None
            return list(record.outputs), [record.gradient_of_loss]
        floating = [output for output in record.outputs if output.is_floating_point()]
        pairs = [(o, g) for o, g in zip(floating, gradients, strict=True) if o.requires_grad]
        return [output for output, _ in pairs], [gradient for _, gradient in pairs]

    # -- update --------------------------------------------------------------------------------------------------

    def take_gradients(self) -> dict[str, Tensor]:
        """The minibatch's gradient by parameter name, its microbatches summed; a weight it did not touch is absent."""
        taken, self.gradients = self.gradients, {}
        self._summed.clear()
        return taken

    def update(self, minibatch: int, gradients: dict[str, Tensor], keep: bool, steady: bool) -> None:
        """U: one optimizer step; `keep` where a later operation still reads the present version."""
        self.audit.settle(minibatch, self.updates, steady)
        self.weights.update(self.optimizer, gradients, keep)
        self.weights.meter.read()

    # -- evaluation and state --------------------------------------------------------------------------------------

    @torch.no_grad()
    def evaluate(self, inputs: Tensors) -> Tensors:
        """The newest weights and buffers in evaluation mode; no state changes."""
        training = [module for module in self.module.modules() if module.training]
        self.module.eval()
        outputs: Tensors = self.module(*inputs, microbatch=(0, 0))
        for module in training:
            module.training = True
        return outputs

    def state(self) -> dict[str, Tensor]:
        """The newest weights and the buffers under the names of the whole model; the tensors themselves."""
        return {self.full_names[local]: tensor for local, tensor in self.module.state_dict().items()}

    def restart_at(self, updates: int) -> None:
        """After weights and optimizer state were put back: how many updates they have behind them."""
        self.weights.newest.number = updates
        self.optimizer.updates = updates

    def report(self) -> dict[str, Any]:
        """What `summary.json` says of the stage's measured weights, activations and staleness; bytes."""
        self.weights.meter.read()
        return {
            "weight_versions_max": self.weights.meter.versions_max,
            "weight_bytes_peak": self.weights.meter.bytes_peak,
            "activation_bytes_peak": self.audit.activation_bytes_peak,
            "forward_staleness": sorted(self.audit.forward_staleness),
            "backward_staleness": sorted(self.audit.backward_staleness),
        }


def _transformed(read: Read, version: WeightVersion, optimizer: StageOptimizer) -> dict[str, Tensor]:
    if read.transform is None:
        return {}
    assert isinstance(read.transform, WeightTransform)
    return read.transform.apply(version, optimizer)


def _separate(parameters: dict[str, nn.Parameter]) -> None:
    # a saved tensor is recognised by its storage, so no two weights may share one
    seen: set[int] = set()
    for parameter in parameters.values():
        storage = parameter.untyped_storage()
        whole = storage.nbytes() == parameter.numel() * parameter.element_size() and wire.is_dense(parameter)
        if storage.data_ptr() in seen or not whole:
            parameter.data = wire.copy(parameter.data)
        seen.add(parameter.untyped_storage().data_ptr())
