"""Memory of weights that nobody reads any more, lent to the weights that are made next."""

from collections.abc import Mapping

import torch
from torch import Tensor

from pipetrain.tensors import is_dense


def _owners(tensor: Tensor) -> int:
    """How many tensors share the memory of this one, itself included, whoever holds them."""
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)


_ONE = _owners(torch.empty(1))


class SpareMemory:
    """Lends memory for sets of weights, and lends it again once its last reader is gone.

    Filling memory that the system has just given costs several times as much as filling it again. Nothing is handed
    back: memory is free when no tensor but the one kept here shares it, and autograd, a checkpoint or a view are
    readers like any other.
    """

    def __init__(self) -> None:
        self._lent: dict[str, list[Tensor]] = {}

    def like(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Name -> memory of that tensor's shape and memory order, whatever it contains."""
        return {name: self._like(name, tensor) for name, tensor in tensors.items()}

    def _like(self, name: str, tensor: Tensor) -> Tensor:
        lent = self._lent.setdefault(name, [])
        spare = next((index for index, memory in enumerate(lent) if _is_spare(memory)), None)
        memory = torch.empty_like(tensor) if spare is None else lent.pop(spare)
        # first to be lent again: beside a set that lies idle, an adopted one would be one set more
        lent.insert(0, memory)
        return memory.data  # another tensor over the same memory, by which its readers are counted

    def copy(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A copy of each."""
        copies = self.like(tensors)
        if copies:
            torch._foreach_copy_(list(copies.values()), list(tensors.values()))
        return copies

    def adopt(self, tensors: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
        """Takes over the memory of tensors that are done with, such as gradients, for the weights of the same names.

        Only of those weights that memory was asked for; what has another form than the weight is left alone.
        """
        for name, tensor in tensors.items():
            if name in self._lent and _fits(tensor, weights[name]):
                self._lent[name].append(tensor.detach())

    def free(self) -> None:
        """Gives back what nobody reads."""
        for lent in self._lent.values():
            lent[:] = [memory for memory in lent if not _is_spare(memory)]


def _is_spare(memory: Tensor) -> bool:
    return _owners(memory) == _ONE


def _fits(tensor: Tensor, weight: Tensor) -> bool:
    """Whether the tensor is a whole array of the weight's form."""
    return (
        tensor.dtype == weight.dtype
        and tensor.device == weight.device
        and tensor.shape == weight.shape
        and tensor.stride() == weight.stride()
        and tensor.untyped_storage().nbytes() == weight.nbytes
        and is_dense(tensor)
    )
