"""Measured cost of each layer, from passes through the whole model, layer by layer, as one-layer stages compute.

Each pass ends with an update of all weights, whose speed is measured as well.
"""

import copy
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from pipetrain.engine.arithmetic import ComputeOptions, switched, torch_threads
from pipetrain.engine.data.minibatches import split
from pipetrain.engine.device_queue import synchronize
from pipetrain.engine.errors import ConfigError
from pipetrain.engine.losses import Loss, on_device
from pipetrain.engine.models.chain import LayerChain, sharing_buffers
from pipetrain.engine.stage.module import StageModule, non_leaf_inputs
from pipetrain.engine.stage.saved_tensors import SavedTensors
from pipetrain.engine.stage.split_layers import split_candidates
from pipetrain.engine.tensors import Tensors, storage_pointers
from pipetrain.planning.profile.profile import ProfiledLayer
from pipetrain.runner.training.components.machine import freed_memory_kept

WARM_UPS = 2
"""Passes that are not timed: the first one also measures bytes."""
_PLAIN = ComputeOptions()
_CPU = torch.device("cpu")
_PASSES_OF_SGD = 3
"""An update of plain SGD reads a weight and its gradient, and writes the weight."""


Minibatch = tuple[Tensors, Tensors]
"""(inputs, targets) of a minibatch."""


@dataclass(frozen=True)
class Measuring:
    """Options of a measurement.

    Attributes:
        loss: computed with the last layer, as the last stage does.
        arithmetic: precision and memory format of the layers.
        num_microbatches: N; only the first is measured.
        repeats: timed passes, whose median counts.
        seed: key of all random draws.
        deterministic, tf32: see `switched`.
        splits: True to measure the parts of a split backward, too, which takes as many passes again.
    """

    loss: Loss
    arithmetic: ComputeOptions = _PLAIN
    device: torch.device = _CPU
    threads: int = 1
    num_microbatches: int = 1
    repeats: int = 10
    seed: int = 0
    deterministic: bool = False
    tf32: bool | None = None
    splits: bool = False

    @property
    def whole_passes(self) -> int:
        """Number of passes with a whole backward, including warm-ups."""
        return WARM_UPS + self.repeats

    @property
    def passes(self) -> int:
        """Number of passes through the model, including warm-ups."""
        return self.whole_passes * (2 if self.splits else 1)


class MeasuredModel(NamedTuple):
    """Costs of the layers, and the speed at which an update reads and writes weights; None if it updates none."""

    layers: tuple[ProfiledLayer, ...]
    update_bytes_per_s: float | None


def measured_model(
    chain: LayerChain, minibatch: Minibatch, how: Measuring, tick: Callable[[], object] = lambda: None
) -> MeasuredModel:
    """Measured cost of each layer for a minibatch (PipeDream § 3.1), and the speed of updates.

    A pass is one forward and backward of all layers in their order, so that each finds caches as training leaves them,
    and memory that the previous pass has freed, as in a stage's process. The layers are copies: neither weights,
    buffers nor random state change. Times are in seconds, sizes in bytes, both of the whole minibatch. The activations
    of a layer are the tensors that autograd saves for its backward, without weights; one that several layers save
    counts at the first of them. W of a split backward takes what a backward takes longer than one without gradients of
    weights.

    Args:
        chain: the model.
        minibatch: its inputs and targets.
        how: options of the measurement.
        tick: called after each pass.

    Raises:
        ConfigError: the whole model does not fit on the device.
    """
    devices = [how.device] if how.device.type == "cuda" else []
    try:
        with (
            freed_memory_kept(),
            torch_threads(how.threads),
            torch.random.fork_rng(devices=devices),
            torch.enable_grad(),
            switched(how.device.type, deterministic=how.deterministic, tf32=how.tf32),
        ):
            return _measured(chain, minibatch, how, tick)
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"train.batch_size={len(minibatch[0][0])}: the whole model does not fit on {how.device} to be measured; "
            "fewer samples do, or more train.microbatches"
        ) from error


def _measured(chain: LayerChain, minibatch: Minibatch, how: Measuring, tick: Callable[[], object]) -> MeasuredModel:
    copied = copy.deepcopy(chain)
    with sharing_buffers(copied.module, *copied.layers):
        copied.module.to(how.device)  # in one step, as layers may share weights
    last, loss = len(copied) - 1, on_device(how.loss, how.device)
    layers = [_Layer(copied, i, how, loss if i == last else None) for i in range(len(copied))]
    update_s, updated_bytes = list[float](), 0
    inputs, targets = (
        tuple(tensor.to(how.device) for tensor in split(tensors, how.num_microbatches)[0]) for tensors in minibatch
    )
    for number in range(how.passes):
        whole = number < how.whole_passes
        if not whole:
            copied.module.requires_grad_(requires_grad=False)
        tensors, counted = inputs, set[int]()
        for layer in layers:
            layer.prepare(tensors, counted, measures=number == 0)
            with _timing(how.device, layer.forward_s):
                tensors = layer.forward(number, targets)
            counted = layer.counted
        gradients: Sequence[Tensor] = []
        for layer in reversed(layers):
            with _timing(how.device, layer.backward_s if whole else layer.without_weights_s):
                gradients = layer.backward(gradients)
        if whole:
            updated_bytes = _update(copied.module, how.device, update_s)
        tick()
    share = len(minibatch[0][0]) / len(inputs[0])  # a minibatch relative to the measured microbatch
    speed = _PASSES_OF_SGD * updated_bytes / statistics.median(update_s[WARM_UPS:]) if updated_bytes else None
    return MeasuredModel(tuple(layer.costs(share) for layer in layers), speed)


@contextmanager
def _timing(device: torch.device, seconds: list[float]) -> Iterator[None]:
    """Appends the time of the block, including the work that it queues on the device."""
    synchronize(device)
    began = time.perf_counter()
    yield
    synchronize(device)
    seconds.append(time.perf_counter() - began)


def _update(module: nn.Module, device: torch.device, seconds: list[float]) -> int:
    """Updates the weights by their gradients, except sparse ones, and appends the time; the number of bytes updated.

    Plain SGD needs no state. The learning rate is 0.
    """
    weights = (weight for weight in module.parameters() if weight.is_floating_point())
    updated = [weight for weight in weights if weight.grad is not None and weight.grad.layout is torch.strided]
    if updated:
        optimizer = torch.optim.SGD(updated, lr=0.0, fused=True)
        with _timing(device, seconds):
            optimizer.step()
    return sum(weight.nbytes for weight in updated)


class _Layer:
    """A layer, computed as a separate stage would compute it; the last one with the loss.

    Attributes:
        forward_s, backward_s: of each pass.
        without_weights_s: of each backward without gradients of weights.
        counted: the storages of its outputs whose bytes it or a layer before it has counted.
    """

    def __init__(self, chain: LayerChain, index: int, how: Measuring, loss: Loss | None) -> None:
        self._label = chain.labels[index]
        layers = [chain.layers[index]]
        self._module = StageModule(layers, index, how.seed, how.arithmetic, how.device, ends=loss is not None)
        self._module.train()
        self._loss = loss
        self._weights = dict(self._module.named_parameters())
        self._behind_data = index > 0
        self._inputs: Tensors = ()
        self._floating: list[Tensor] = []
        self._input_gradients: list[Tensor | None] = []
        self._outputs: Tensors = ()
        self._saved: SavedTensors | None = None
        self._output_bytes = self._activation_bytes = self._shared_bytes = 0
        self._put_aside_bytes: int | None = None
        self._hookable = not how.arithmetic.compiled
        self.counted: set[int] = set()
        self.forward_s: list[float] = []
        self.backward_s: list[float] = []
        self.without_weights_s: list[float] = []

    def prepare(self, inputs: Tensors, counted: set[int], *, measures: bool) -> None:
        """Takes the inputs of the next forward, some of whose storages are counted already."""
        self._inputs, self.counted = inputs, counted
        self._floating = [tensor for tensor in inputs if tensor.is_floating_point() and self._behind_data]
        self._saved = SavedTensors(self._weights) if measures else None
        self._module.zero_grad()

    def forward(self, number: int, targets: Tensors) -> Tensors:
        """The outputs of pass `number`, detached."""
        parts = _SplitParts(self._module) if self._saved and self._hookable else None
        with self._saved.hooks() if self._saved else nullcontext(), parts or nullcontext():
            arrived, self._input_gradients = non_leaf_inputs(self._inputs, self._floating)
            returned: Tensors = self._module(*arrived, microbatch=(number, 0))
            self._outputs = returned if self._loss is None else (self._loss(*returned, *targets),)
        if self._saved:
            self._count(self._saved, returned)
        if parts:
            self._put_aside_bytes = parts.put_aside_bytes
        return tuple(output.detach() for output in returned)

    def _count(self, saved: SavedTensors, outputs: Tensors) -> None:
        saved.backward_weights = self._weights
        made, of_inputs = saved.activation_bytes(self._inputs)
        before = [tensor for tensor in self._inputs if storage_pointers([tensor]) <= self.counted]
        self._shared_bytes = saved.activation_bytes(before).inputs
        self._activation_bytes = made + of_inputs - self._shared_bytes
        self._output_bytes = sum(output.nbytes for output in outputs)
        kept = storage_pointers(output for output in outputs if saved.activation_bytes([output]).inputs)
        self.counted = storage_pointers(outputs) & (self.counted | kept)

    def backward(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """The gradients of the floating-point inputs, given the outputs' gradients, which the loss does not need."""
        outputs = [output for output in self._outputs if output.is_floating_point()]
        arriving = gradients if self._loss is None else [torch.ones_like(outputs[0])]
        pairs = [pair for pair in zip(outputs, arriving, strict=True) if pair[0].requires_grad]
        if pairs:
            torch.autograd.backward([output for output, _ in pairs], [gradient for _, gradient in pairs])
        self._outputs = ()
        found = zip(self._floating, self._input_gradients, strict=True)
        return [torch.zeros_like(tensor) if gradient is None else gradient for tensor, gradient in found]

    def costs(self, share: float) -> ProfiledLayer:
        """Costs of a minibatch that is `share` times the measured inputs."""
        backward_s = statistics.median(self.backward_s[WARM_UPS:])
        weights_s = None
        if self.without_weights_s:
            weights_s = share * max(0.0, backward_s - statistics.median(self.without_weights_s[WARM_UPS:]))
        return ProfiledLayer(
            label=self._label,
            forward_s=share * statistics.median(self.forward_s[WARM_UPS:]),
            backward_s=share * backward_s,
            output_bytes=round(share * self._output_bytes),
            weight_bytes=sum(weight.nbytes for weight in self._weights.values()),
            activation_bytes=round(share * self._activation_bytes),
            shared_bytes=round(share * self._shared_bytes),
            weight_gradient_s=weights_s,
            put_aside=None if self._put_aside_bytes is None else round(share * self._put_aside_bytes),
        )


class _SplitParts:
    """The modules of a layer that a split backward splits, while a forward runs."""

    def __init__(self, layer: nn.Module) -> None:
        self._parts = list(split_candidates(layer))
        self._inputs: dict[int, int] = {}
        self._outputs_bytes = 0
        self._handles: list[RemovableHandle] = []

    @property
    def put_aside_bytes(self) -> int:
        """Bytes of their inputs, and of the gradients of their outputs."""
        return sum(self._inputs.values()) + self._outputs_bytes

    def __enter__(self) -> None:
        self._handles = [part.register_forward_hook(self._count) for part in self._parts]

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _count(self, _part: nn.Module, inputs: Tensors, output: Tensor) -> None:
        self._inputs |= {tensor.untyped_storage().data_ptr(): tensor.nbytes for tensor in inputs}
        self._outputs_bytes += output.nbytes
