"""The inputs that a module is traced with, and how they reach its forward."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

SAMPLES = (5, 3)
"""Of the two recordings that tell what follows from the number of samples."""


@dataclass(frozen=True)
class Example:
    """The inputs of a few samples, in the order of the data set.

    Attributes:
        tensors: (samples, …) each.
        names: the parameters of the forward that they go to; none where they go there in their order.
    """

    tensors: tuple[Tensor, ...]
    names: tuple[str, ...] = ()

    @classmethod
    def of(cls, inputs: Mapping[str, Tensor] | Sequence[Tensor]) -> "Example":
        """The example of these inputs, by name or in order."""
        return cls(tuple(inputs.values()), tuple(inputs)) if isinstance(inputs, Mapping) else cls(tuple(inputs))

    @property
    def length(self) -> int | None:
        """The size of dimension 1 where that may differ between minibatches: of ids, or of sequences of features."""
        sequences = (tensor for tensor in self.tensors if _is_sequence(tensor) and tensor.shape[1] > 2)
        return next((tensor.shape[1] for tensor in sequences), None)

    def resized(self, samples: int, length: int | None) -> "Example":
        """So many of the samples, from the first on and over again, each sequence cut to `length`."""
        return replace(self, tensors=tuple(self._resized(tensor, samples, length) for tensor in self.tensors))

    def _resized(self, tensor: Tensor, samples: int, length: int | None) -> Tensor:
        picked = tensor[torch.arange(samples) % len(tensor)]
        return picked[:, :length].clone() if self._has_length(tensor) else picked

    def fixed(self, *, varied: bool) -> list[tuple[int | None, ...]]:
        """The shape of each tensor, None for what may differ: the samples, and the length where it is `varied`."""
        return [tuple(self._fixed(tensor, varied=varied)) for tensor in self.tensors]

    def _fixed(self, tensor: Tensor, *, varied: bool) -> Sequence[int | None]:
        sizes: list[int | None] = [None, *tensor.shape[1:]]
        if varied and self._has_length(tensor):
            sizes[1] = None
        return sizes

    def _has_length(self, tensor: Tensor) -> bool:
        return tensor.ndim in (2, 3) and tensor.shape[1] == self.length


def _is_sequence(tensor: Tensor) -> bool:
    return tensor.ndim == 3 or (tensor.ndim == 2 and not tensor.is_floating_point())
