"""The split backward: layers whose B computes the gradients of inputs, and puts those of weights aside for W."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, _engine_run_backward, get_gradient_edge
from torch.nn.utils.parametrize import is_parametrized
from typing_extensions import override

from pipetrain.engine.arithmetic import ComputeOptions
from pipetrain.engine.stage.weight_uses import Forward, WeightUses, requires_grad
from pipetrain.engine.tensors import Tensors

_KINDS = (
    nn.Linear, nn.Embedding, nn.Conv1d, nn.Conv2d, nn.Conv3d,
    nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d,
)  # fmt: skip
_FORWARDS = {kind.forward for kind in _KINDS}


@dataclass(eq=False)
class PutAside:
    """Outputs of the split layers in one forward, with the gradients that its B found and its W begins with.

    Attributes:
        tensors: inputs of these layers, and the gradients, whose memory lasts until W.
    """

    edges: list[GradientEdge] = field(default_factory=list)
    gradients: list[Tensor] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    _collects: bool = False

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """The context of B: a layer may also differentiate others inside its forward."""
        self._collects = True
        try:
            yield
        finally:
            self._collects = False

    def add(self, call: "_Call", gradient: Tensor) -> None:
        """Puts aside the gradient of a call's output."""
        if self._collects:
            self.edges.append(call.output)
            self.gradients.append(gradient)
            self.tensors += [gradient, *filter(torch.is_tensor, call.given)]

    @cached_property
    def storages(self) -> Mapping[int, int]:
        """Where the storages of the tensors begin -> bytes of the largest of these tensors, after B."""
        sizes: dict[int, int] = {}
        for tensor in self.tensors:
            storage = tensor.untyped_storage()
            pointer, size = storage.data_ptr(), min(tensor.nbytes, storage.nbytes())  # it may be expanded
            sizes[pointer] = max(size, sizes.get(pointer, 0))
        return sizes

    @cached_property
    def bytes(self) -> int:
        """Bytes that W keeps."""
        return sum(self.storages.values())

    def backward(self, leaves: Iterable[Tensor]) -> None:
        """Adds to the gradients of those of these leaves that need one."""
        if self.edges:
            _run_backward(self.edges, self.gradients, [leaf for leaf in leaves if leaf.requires_grad], last=True)


def _run_backward(
    edges: Sequence[GradientEdge], gradients: Sequence[Tensor], inputs: Sequence[Tensor], *, last: bool
) -> Sequence[Tensor | None]:
    """torch.autograd.backward for the `last` time, or before it torch.autograd.grad, whose checks take three times as
    long as the backward of a small layer.
    """
    create_graph, allow_unreachable = False, True
    found: Sequence[Tensor | None] = _engine_run_backward(
        tuple(edges), tuple(gradients), not last, create_graph, tuple(inputs), allow_unreachable, accumulate_grad=last
    )
    return found


@dataclass(eq=False)
class _Call:
    """A call of a split layer.

    Attributes:
        output: of the layer's own graph, which ends at `inputs`.
        given: the inputs, the differentiable ones as leaves.
        inputs: these leaves.
    """

    output: GradientEdge
    given: Sequence[Any]
    inputs: Sequence[Tensor]
    put_aside: PutAside


class _Splitting(torch.autograd.Function):
    """Stands for a layer in the stage's graph, so that a backward through it leaves out the layer's weights."""

    @staticmethod
    @override
    def forward(ctx: Any, call: _Call, output: list[Tensor], *_inputs: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.call = call
        return output.pop()

    @staticmethod
    @override
    def backward(ctx: Any, gradient: Tensor | None) -> Any:
        call: _Call = ctx.call
        if torch.is_grad_enabled():
            raise RuntimeError(_TWICE)
        if gradient is None:
            return None, None, *(None for _ in call.inputs or _ANCHOR)
        call.put_aside.add(call, gradient)
        if not call.inputs:
            return None, None, None
        return None, None, *_run_backward((call.output,), (gradient,), call.inputs, last=False)


_TWICE = (
    "the backward of a layer that splits is itself differentiated, by a layer that was not in the first forward; set "
    "splits_backward = False on that layer"
)
_ANCHOR = (torch.zeros((), requires_grad=True),)
"""Input that has autograd call a layer without differentiable inputs."""


class SplitLayers:
    """The layers of a stage whose backwards split.

    These are linear layers, convolutions and embeddings of torch, and modules that set `splits_backward = True`: one
    whose `forward(*tensors)` returns one tensor. Such a module runs backward a second time from its output to its
    weights, so it should be a single operation. `splits_backward = False` keeps a module, with all in it, whole.

    The first forward runs whole, and its graph shows which layers can split with the bits of a whole backward: all
    uses of their weights must be theirs, since autograd adds up all uses before it adds to a sum.
    """

    def __init__(self, module: nn.Module, arithmetic: ComputeOptions) -> None:
        self._mixed = arithmetic.mixed
        self._candidates = [] if arithmetic.compiled else list(dict.fromkeys(_candidates(module)))
        self._forwards: dict[nn.Module, Forward] | None = None if self._candidates else {}
        self._current: PutAside | None = None

    @property
    def read_weights(self) -> bool:
        """True if the backward from the output of some layer to its weights may depend on these."""
        return any(type(each).forward not in _FORWARDS or is_parametrized(each) for each in self._forwards or ())

    def run(self, forward: Callable[[], Tensors], inputs: Tensors) -> tuple[Tensors, PutAside]:
        """Outputs of `forward` on these inputs, and where their backward puts aside what it leaves to W."""
        if self._forwards is None:
            return self._learning(forward, inputs), PutAside()
        put_aside = self._current = PutAside()
        with _replaced(self._forwards):
            outputs = forward()
        self._current = None  # it holds the graph
        return outputs, put_aside

    def _learning(self, forward: Callable[[], Tensors], inputs: Tensors) -> Tensors:
        uses = WeightUses(inputs)
        with _replaced({module: uses.noting(module) for module in self._candidates}):
            outputs = forward()
        self._forwards = {module: self._splitting(module.forward) for module in uses.separate(outputs)}
        return outputs

    def _splitting(self, whole: Forward) -> Forward:
        autocasts = self._mixed and getattr(whole, "__func__", None) in _FORWARDS

        def forward(*args: Any, **kwargs: Any) -> Any:
            if kwargs or not torch.is_grad_enabled():
                return whole(*args, **kwargs)
            assert self._current is not None
            given = [_as_autocast(each) for each in args] if autocasts else args
            before = [each for each in given if requires_grad(each)]
            cut = [each.detach().requires_grad_() if requires_grad(each) else each for each in given]
            output = whole(*cut)
            if not output.requires_grad:
                return output
            call = _Call(get_gradient_edge(output), cut, [each for each in cut if requires_grad(each)], self._current)
            shared = [output.detach()]  # so that changes in place are seen where the layer's own graph has saved it
            return _Splitting.apply(call, shared, *(before or _ANCHOR))

        return forward


def _candidates(module: nn.Module) -> Iterator[nn.Module]:
    """The outermost modules that may split; whatever replaces a module's `forward` keeps it and its parts whole."""
    chosen = getattr(module, "splits_backward", None)
    replaced = "forward" in vars(module) or hasattr(module, "_orig_mod") or module._compiled_call_impl is not None
    if chosen is False or replaced:
        return
    if not (chosen or type(module).forward in _FORWARDS):
        for child in module.children():
            yield from _candidates(child)
    elif all(parameter.requires_grad for parameter in module.parameters()):  # frozen weights need no inputs kept
        yield module


@contextmanager
def _replaced(forwards: Mapping[nn.Module, Forward]) -> Iterator[None]:
    for module, forward in forwards.items():
        vars(module)["forward"] = forward
    try:
        yield
    finally:
        for module in forwards:
            del vars(module)["forward"]


def _as_autocast(value: Any) -> Any:
    """An input in the dtype that autocast computes in: else the original would be kept as well as its cast."""
    if not requires_grad(value) or not torch.is_autocast_enabled(value.device.type):
        return value
    if value.dtype == torch.float64 or value.is_complex():
        return value
    return value.to(torch.get_autocast_dtype(value.device.type))
