"""Training cost of each layer of a chain, estimated from shapes alone, so that a plan is reproducible."""

import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry
from typing_extensions import override

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.failure import described
from pipetrain.engine.models.chain import LayerChain
from pipetrain.engine.seeding import python_draws

# Fitted to the layers of ResNet-20 and ResNet-56 at batch 64 on one CPU core, float32: nearly all are then right to a
# fifth. Only the ratio of the two moves a partition.
FLOPS_PER_SECOND = 140e9
BYTES_PER_SECOND = 8e9
# Of updates, copies and predictions of AlexNet's weights, two such cores side by side.
WEIGHT_BYTES_PER_SECOND = 25e9

WeightPasses = Callable[[int], Sequence[float]]
"""Number of stages -> for each, how often a minibatch reads or writes every weight outside forward and backward."""


def no_passes(num_stages: int) -> list[float]:
    """Weight passes of a pipeline whose weights are never updated: none on any stage."""
    return [0.0] * num_stages


@dataclass(frozen=True)
class LayerCost:
    """The estimate for one layer and one microbatch, forward and backward together.

    Attributes:
        parameters: number of weights.
        flops: floating-point operations.
        bytes_moved: read and written by every operator that is not a view.
        output_bytes: sent by a cut after this layer for each microbatch.
        memory_bytes: of weights, their gradients, and everything that the forward computes.
        trainable_bytes: of the weights that are trained.
    """

    label: str
    parameters: int
    flops: int
    bytes_moved: int
    output_bytes: int
    memory_bytes: int
    weight_bytes: int
    trainable_bytes: int

    @property
    def cost(self) -> float:
        """Estimated seconds of one forward and backward on one CPU core."""
        return self.flops / FLOPS_PER_SECOND + self.bytes_moved / BYTES_PER_SECOND

    def at(self, weight_passes: float) -> float:
        """Estimated seconds with `weight_passes` additional reads or writes of each trainable weight."""
        return self.cost + weight_passes * self.trainable_bytes / WEIGHT_BYTES_PER_SECOND


def layer_costs(chain: LayerChain, example: Sequence[Tensor]) -> list[LayerCost]:
    """The estimate of every layer for an input like `example`, the tensors of one microbatch.

    The layers run on copies that have shapes and no data: weights, buffers and random numbers stay as they are. A model
    that needs real data, such as one that branches on values, runs once on a real copy. Random draws are the same each
    time, as the computation may depend on them.

    Raises:
        ConfigError: a layer does not run on what it is given.
    """
    with torch.random.fork_rng(devices=[]):
        try:
            with _same_draws():
                return _run(_copy(chain, lambda tensor: tensor.to("meta")), [tensor.to("meta") for tensor in example])
        except ConfigError:
            with _same_draws():
                return _run(_copy(chain, torch.clone), [tensor.clone() for tensor in example])


@contextmanager
def _same_draws() -> Iterator[None]:
    torch.default_generator.manual_seed(0)
    with python_draws(0):
        yield


def _copy(chain: LayerChain, convert: Callable[[Tensor], Tensor]) -> LayerChain:
    """A copy with every tensor converted, those that are plain attributes too; what was shared stays shared."""
    memo: dict[int, Any] = {}
    for part in itertools.chain.from_iterable(module.modules() for module in (chain.module, *chain.layers)):
        plain = [value for value in vars(part).values() if isinstance(value, Tensor)]
        for tensor in (*part.parameters(recurse=False), *part.buffers(recurse=False), *plain):
            value = convert(tensor.detach())
            weight = isinstance(tensor, nn.Parameter)
            memo[id(tensor)] = nn.Parameter(value, requires_grad=tensor.requires_grad) if weight else value
    return copy.deepcopy(chain, memo)


def _run(chain: LayerChain, tensors: list[Tensor]) -> list[LayerCost]:
    costs: list[LayerCost] = []
    for i, (label, layer) in enumerate(zip(chain.labels, chain.layers, strict=True)):
        # the data needs no gradient, which saves the first layer a part of its backward
        inputs = [tensor.detach().requires_grad_(i > 0 and tensor.is_floating_point()) for tensor in tensors]
        try:
            cost, tensors = _cost_in_place(label, layer.train(), inputs)
        except Exception as error:
            shapes = ", ".join(str(tuple(tensor.shape)) for tensor in inputs)
            problem = f"fails on an input of shape {shapes}: {described(error)}"
            raise ConfigError(f"model: layer {i} ({label}) {problem}") from error
        costs.append(cost)
    return costs


def _cost_in_place(label: str, layer: nn.Module, inputs: list[Tensor]) -> tuple[LayerCost, list[Tensor]]:
    """The same as `_cost`, also for a layer that changes its inputs in place, as it may not change leaves."""
    try:
        return _cost(label, layer, inputs)
    except RuntimeError as error:
        if "leaf Variable that requires grad" not in str(error):
            raise
        return _cost(label, layer, [tensor.clone() for tensor in inputs])


def _cost(label: str, layer: nn.Module, inputs: list[Tensor]) -> tuple[LayerCost, list[Tensor]]:
    """The estimate of a layer that is run forward and backward once, and its outputs."""
    with torch.enable_grad(), _Counter() as counter:
        returned = layer(*inputs)
        outputs = list(returned) if isinstance(returned, tuple) else [returned]
        if not all(isinstance(output, Tensor) for output in outputs):
            kinds = ", ".join(type(output).__name__ for output in outputs)
            raise TypeError(f"it returned ({kinds}), not a tensor or a tuple of tensors")
        computed_bytes = counter.written
        computed = [output for output in outputs if output.grad_fn is not None]
        if computed:
            torch.autograd.backward(computed, [torch.empty_like(output) for output in computed])
    weights = list(layer.parameters())
    weight_bytes = sum(weight.nbytes for weight in weights)
    trainable_bytes = sum(weight.nbytes for weight in weights if weight.requires_grad)
    cost = LayerCost(
        label=label,
        parameters=sum(weight.numel() for weight in weights),
        flops=counter.flops,
        bytes_moved=counter.read + counter.written,
        output_bytes=sum(output.nbytes for output in outputs),
        memory_bytes=weight_bytes + trainable_bytes + computed_bytes,
        weight_bytes=weight_bytes,
        trainable_bytes=trainable_bytes,
    )
    return cost, outputs


class _Counter(TorchDispatchMode):
    """Counts the floating-point operations and the memory traffic of what runs under it."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0
        self.read = 0
        self.written = 0

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        returned = func(*args, **kwargs)
        packet = func._overloadpacket
        if packet in flop_registry:
            self.flops += flop_registry[packet](*args, **kwargs, out_val=returned)
        elif packet in _FUSED_RECURRENT:
            # (positions, samples, features), and the weights of all gates for inputs and for hidden states
            inputs, of_inputs, of_hidden = args[:3]
            products = inputs.shape[0] * inputs.shape[1] * (of_inputs.numel() + of_hidden.numel())
            self.flops += _FUSED_RECURRENT[packet] * 2 * products
        if not func.is_view and func not in _ALLOCATIONS:
            self.read += _bytes((args, kwargs))
            self.written += _bytes(returned)
        return returned


_FUSED_RECURRENT = {torch.ops.aten.mkldnn_rnn_layer: 1, torch.ops.aten.mkldnn_rnn_layer_backward: 2}
"""Fused LSTM operators that torch's registry of FLOPs lacks -> their FLOPs as a multiple of the forward's."""


_ALLOCATIONS = {torch.ops.aten.empty_like.default, torch.ops.aten.empty.memory_format, torch.ops.aten.detach.default}


def _bytes(tree: Any) -> int:
    tensors = (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))
    return sum(tensor.nbytes for tensor in tensors if tensor.layout == torch.strided)
