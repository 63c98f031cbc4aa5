"""The module of a stage: its layers, computing with whichever weights they are lent."""

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from pipetrain.seeding import key

Tensors = tuple[Tensor, ...]
MicrobatchId = tuple[int, int]
AtLayer = Callable[[int, Tensors], Tensors]
"""(index of a layer in the chain, its inputs) -> what it gets instead."""


class StageModule(nn.Module):
    """Consecutive layers of a chain; what each draws at random depends on where it stands, not on who runs it."""

    def __init__(self, layers: Sequence[nn.Module], first: int, seed: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.first = first
        self.seed = seed
        names = {id(parameter): name for name, parameter in self.named_parameters()}
        self._slots = [
            (module._parameters, local, names[id(parameter)])
            for module in self.modules()
            for local, parameter in module._parameters.items()
            if parameter is not None
        ]
        self._recurrent = [module for module in self.modules() if isinstance(module, nn.RNNBase)]
        self._buffer_slots = [
            (module._buffers, local)
            for module in self.modules()
            for local, buffer in module._buffers.items()
            if buffer is not None
        ]

    @contextmanager
    def reading(self, weights: Mapping[str, Tensor]) -> Iterator[None]:
        """Computes with `weights` (by parameter name) in place of the parameters.

        torch.func.functional_call does the same at a hundred times the cost, which a small microbatch feels.
        """
        own = [slots[name] for slots, name, _ in self._slots]
        try:
            for slots, name, full in self._slots:
                slots[name] = weights[full]  # type: ignore[assignment]
            yield
        finally:
            for (slots, name, _), parameter in zip(self._slots, own, strict=True):
                slots[name] = parameter
            for module in self._recurrent:
                # torch keeps a list of its own, which would hold the lent weights until the next forward
                module._flat_weights = [getattr(module, name, None) for name in module._flat_weights_names]
                module._flat_weight_refs = [None if w is None else weakref.ref(w) for w in module._flat_weights]

    @contextmanager
    def spare_buffers(self) -> Iterator[None]:
        """Computes with copies of the buffers, which are then forgotten."""
        own = [slots[name] for slots, name in self._buffer_slots]
        try:
            for (slots, name), buffer in zip(self._buffer_slots, own, strict=True):
                slots[name] = buffer.clone() if buffer is not None else None
            yield
        finally:
            for (slots, name), buffer in zip(self._buffer_slots, own, strict=True):
                slots[name] = buffer

    def forward(
        self, *tensors: Tensor, microbatch: MicrobatchId, at_layer: AtLayer = lambda layer, tensors: tensors
    ) -> Tensors:
        """All layers in turn.

        Args:
            tensors: the first layer's inputs.
            microbatch: (minibatch since the start of the run, microbatch).
            at_layer: what a layer's inputs are replaced by.
        """
        for index, layer in enumerate(self.layers, start=self.first):
            tensors = at_layer(index, tensors)
            reseed(key(self.seed, *microbatch, index))
            result = layer(*tensors)
            tensors = result if isinstance(result, tuple) else (result,)
        return tensors

    @torch.no_grad()
    def evaluate(self, *tensors: Tensor) -> Tensors:
        """All layers in turn in evaluation mode; no state changes."""
        training = [module for module in self.modules() if module.training]
        self.eval()
        outputs: Tensors = self(*tensors, microbatch=(0, 0))
        for module in training:
            module.training = True
        return outputs


def reseed(seed: int) -> None:
    """Seeds the generators that layers draw from; torch.manual_seed does the same at a hundred times the cost."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.default_generators[torch.cuda.current_device()].manual_seed(seed)


class Arrive(torch.autograd.Function):
    """The stage's input as no leaf, so that a first layer may work on it in place.

    Autograd would copy a gradient into a leaf if another branch still uses it; here it is only looked at.
    """

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, gradients: list[Tensor | None], place: int) -> Tensor:
        """The same memory as another tensor, without the leaf's ban on changes in place."""
        ctx.gradients, ctx.place = gradients, place
        return tensor.data

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Leaves the gradient as it comes in its place of the list."""
        ctx.gradients[ctx.place] = gradients[0]
        return None, None, None
