"""The layers of a stage whose backwards split: linear layers, convolutions, embeddings, and any that say so."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from pipetrain.engine.arithmetic import ComputeOptions
from pipetrain.engine.stage.split_backward import PutAside, split_call
from pipetrain.engine.stage.weight_uses import Forward, WeightUses, requires_grad
from pipetrain.engine.tensors import Tensors

_KINDS = (
    nn.Linear, nn.Embedding, nn.Conv1d, nn.Conv2d, nn.Conv3d,
    nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d,
)  # fmt: skip
_FORWARDS = {kind.forward for kind in _KINDS}


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
        self._candidates = [] if arithmetic.compiled else list(dict.fromkeys(split_candidates(module)))
        self._forwards: dict[nn.Module, Forward] | None = None if self._candidates else {}
        self._current: PutAside | None = None
        self.read_weights = False
        """True if the backward from the output of some layer to its weights may depend on these."""

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
        self.read_weights = any(
            type(each).forward not in _FORWARDS or is_parametrized(each) or each._forward_pre_hooks
            for each in self._forwards
        )
        return outputs

    def _splitting(self, whole: Forward) -> Forward:
        autocasts = self._mixed and getattr(whole, "__func__", None) in _FORWARDS

        def forward(*args: Any, **kwargs: Any) -> Any:
            if kwargs or not torch.is_grad_enabled():
                return whole(*args, **kwargs)
            assert self._current is not None
            given = [_as_autocast(each) for each in args] if autocasts else args
            return split_call(whole, given, self._current)

        return forward


def split_candidates(module: nn.Module) -> Iterator[nn.Module]:
    """The outermost modules that may split; whatever replaces a module's `forward` keeps it and its parts whole."""
    chosen = getattr(module, "splits_backward", None)
    replaced = "forward" in vars(module) or hasattr(module, "_orig_mod") or module._compiled_call_impl is not None
    if chosen is False or replaced:
        return
    if not (chosen or type(module).forward in _FORWARDS):
        for child in module.children():
            yield from split_candidates(child)
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
