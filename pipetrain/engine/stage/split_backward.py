"""The backward of a layer in two parts: B computes the gradients of its inputs, and W those of its weights."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, _engine_run_backward, get_gradient_edge
from typing_extensions import override

from pipetrain.engine.stage.weight_uses import requires_grad


@dataclass(eq=False)
class PutAside:
    """Outputs of the split layers in one forward, with the gradients that its B found and its W begins with."""

    edges: list[GradientEdge] = field(default_factory=list)
    gradients: list[Tensor] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    """Inputs of these layers, and the gradients, whose memory lasts until W."""
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
            run_backward(self.edges, self.gradients, [leaf for leaf in leaves if leaf.requires_grad], last=True)


def run_backward(
    ends: Sequence[GradientEdge | Tensor], gradients: Sequence[Tensor], inputs: Sequence[Tensor], *, last: bool
) -> Sequence[Tensor | None]:
    """torch.autograd.backward for the `last` time, or before it torch.autograd.grad, whose checks take three times as
    long as the backward of a small layer.
    """
    create_graph, allow_unreachable = False, True
    found: Sequence[Tensor | None] = _engine_run_backward(
        tuple(ends), tuple(gradients), not last, create_graph, tuple(inputs), allow_unreachable, accumulate_grad=last
    )
    return found


def split_call(layer: Callable[..., Tensor], given: Sequence[Any], put_aside: PutAside) -> Tensor:
    """Output of a layer in a graph of its own, whose backward leaves the layer's weights to W."""
    before = [each for each in given if requires_grad(each)]
    cut = [each.detach().requires_grad_() if requires_grad(each) else each for each in given]
    output = layer(*cut)
    if not output.requires_grad:
        return output
    call = _Call(get_gradient_edge(output), cut, [each for each in cut if requires_grad(each)], put_aside)
    shared = [output.detach()]  # so that changes in place are seen where the layer's own graph has saved it
    found: Tensor = _Splitting.apply(call, shared, *(before or _ANCHOR))
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
        return None, None, *run_backward((call.output,), (gradient,), call.inputs, last=False)


_TWICE = (
    "the backward of a layer that splits is itself differentiated, by a layer that was not in the first forward; set "
    "splits_backward = False on that layer"
)
_ANCHOR = (torch.zeros((), requires_grad=True),)
"""Input that has autograd call a layer without differentiable inputs."""
