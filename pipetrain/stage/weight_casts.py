"""Casts of weights that mixed precision makes in a forward, and how to make them again of other weights."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import override


class Cast(NamedTuple):
    """A cast of a weight, or of a part of one.

    Attributes:
        name: of the weight.
        size, stride, offset: of the part.
        dtype: what it was cast to.
    """

    name: str
    size: torch.Size
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype

    def of(self, weights: Mapping[str, Tensor]) -> Tensor:
        """The same cast of these weights."""
        return weights[self.name].as_strided(self.size, self.stride, self.offset).to(self.dtype)


class WeightCasts(TorchDispatchMode):
    """Notices each cast of a weight in the operations that run under it, autocast's included.

    Args:
        weights: by name.
    """

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._names = {weight.untyped_storage().data_ptr(): name for name, weight in weights.items()}
        self._casts: dict[int, tuple[StorageWeakRef, Cast]] = {}

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        returned = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and returned.dtype != args[0].dtype:
            source = args[0]
            name = self._names.get(source.untyped_storage().data_ptr())
            if name is not None:
                cast = Cast(name, source.size(), source.stride(), int(source.storage_offset()), returned.dtype)
                storage = returned.untyped_storage()
                self._casts[storage.data_ptr()] = StorageWeakRef(storage), cast
        return returned

    def of(self, tensor: Tensor) -> Cast | None:
        """The cast that a tensor is, or is a view of; None where it is no such."""
        found = self._casts.get(tensor.untyped_storage().data_ptr())
        # memory of a cast that is gone may be another's by now
        return found[1] if found is not None and not found[0].expired() else None
