"""The module of a stage: its layers, computing with whichever weights they are lent."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from pipetrain.seeding import key

Tensors = tuple[Tensor, ...]
MicrobatchId = tuple[int, int]


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

    def forward(self, *tensors: Tensor, microbatch: MicrobatchId) -> Tensors:
        """All layers in turn; `microbatch` is (minibatch since the start of the run, microbatch)."""
        for index, layer in enumerate(self.layers, start=self.first):
            reseed(key(self.seed, *microbatch, index))
            result = layer(*tensors)
            tensors = result if isinstance(result, tuple) else (result,)
        return tensors


def reseed(seed: int) -> None:
    """Seeds the generators that layers draw from; torch.manual_seed does the same at a hundred times the cost."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.default_generators[torch.cuda.current_device()].manual_seed(seed)


class Arrive(torch.autograd.Function):
    """The stage's input as no leaf, so that a first layer may work on it in place."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        """The same memory as another tensor, without the leaf's ban on changes in place."""
        return tensor.data

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """The gradient as it comes."""
        return gradients[0]
