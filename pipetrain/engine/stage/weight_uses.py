"""The uses of weights in a forward: which modules' weights a backward can leave to another, with the same sums."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge

from pipetrain.engine.tensors import Tensors

Forward = Callable[..., Any]


def requires_grad(value: Any) -> TypeGuard[Tensor]:
    """True for a tensor that needs a gradient."""
    return isinstance(value, Tensor) and value.requires_grad


def _nodes(values: Iterable[Any]) -> list[Node]:
    return [get_gradient_edge(value).node for value in values if requires_grad(value)]


@dataclass(eq=False)
class _Call:
    """A call of a module in a whole forward: nodes of its inputs and of its output; None if it cannot split."""

    module: nn.Module
    inputs: list[Node]
    output: Node | None


class WeightUses:
    """The calls of some modules in one forward, and its graph."""

    def __init__(self, inputs: Tensors) -> None:
        self._inputs = _nodes(inputs)
        self._calls: list[_Call] = []
        self._hooks = _saving_hooks()

    def noting(self, module: nn.Module) -> Forward:
        """The module's forward, which notes its calls."""
        whole = module.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            inputs = _nodes(args)
            output = whole(*args, **kwargs)
            # a checkpointed layer computes again in each backward; a transform of torch.func has graphs of its own
            checkpointed = _saving_hooks() != self._hooks
            transformed = torch._C._functorch.peek_interpreter_stack() is not None
            splits = torch.is_grad_enabled() and not (kwargs or checkpointed or transformed)
            found = _nodes([output]) if splits else []
            self._calls.append(_Call(module, inputs, found[0] if found else None))
            return output

        return forward

    def separate(self, outputs: Tensors) -> set[nn.Module]:
        """The modules whose weights' gradients a backward from these outputs can leave to another.

        In all their calls, what leads from the output to weights is reached from nowhere else, and leads nowhere else.
        """
        ends = [*self._inputs, *_nodes(outputs)]
        modules = {call.module for call in self._calls} - {call.module for call in self._calls if call.output is None}
        while True:
            calls = [call for call in self._calls if call.module in modules]
            jumps = {call.output: call.inputs for call in calls}
            others = {*_reached(ends, jumps), *jumps}
            mixed = {call.module for call in calls if not others.isdisjoint(_inside(call))}
            if not mixed:
                return modules
            modules -= mixed


def _saving_hooks() -> object:
    ignores_tracing = False
    return torch._C._autograd._top_saved_tensors_default_hooks(ignores_tracing)


def _inside(call: _Call) -> set[Node]:
    """Nodes that a call's output leads to, but for the inputs and what is behind them."""
    assert call.output is not None
    return _reached(_followed(call.output), dict.fromkeys(call.inputs, ()))


def _followed(node: Node) -> list[Node]:
    return [each for each, _ in node.next_functions if each is not None]


def _reached(roots: Sequence[Node], jumps: Mapping[Any, Sequence[Node]]) -> set[Node]:
    """Nodes that lead on from `roots`, those included; from a node of `jumps` to the ones named there, without it."""
    reached, jumped, todo = set[Node](), set[Node](), [*roots]
    while todo:
        node = todo.pop()
        if node in reached or node in jumped:
            continue
        (jumped if node in jumps else reached).add(node)
        todo += jumps[node] if node in jumps else _followed(node)
    return reached
