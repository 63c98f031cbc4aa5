"""Memory of weights that nobody reads any more, lent to the weights that are made next."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from pipetrain.tensors import is_dense

_FIRST, _LAST = 3, 2
"""Of a long row of memory, so many places at each end are looked at."""


def _owners(tensor: Tensor) -> int:
    """Number of tensors that share the memory of this one, itself included, as C++ counts them."""
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)


_ONE = _owners(torch.empty(1))


def check_counts() -> None:
    """Checks that torch counts every kind of reader of a tensor's memory.

    Raises:
        RuntimeError: it does not, so memory in use would look free and be overwritten.
    """
    readers: Mapping[str, Callable[[Tensor], object]] = {
        "a view": lambda lent: lent[:1],
        "a detached tensor": lambda lent: lent.detach(),
        "a tensor saved for backward": lambda lent: torch.ones(2, requires_grad=True) * lent,
    }
    for kind, read in readers.items():
        memory = torch.empty(2)
        with torch.enable_grad():
            reader = read(memory.data)
        counted = _owners(memory) > _ONE
        del reader
        if not counted or _owners(memory) != _ONE:
            raise RuntimeError(f"torch {torch.__version__} miscounts {kind} in torch._C._storage_Use_Count")


check_counts()


class SpareMemory:
    """Lends memory for sets of weights, and lends it again once its last reader is gone.

    Filling memory that the system has just given costs several times as much as filling it again. Nothing is handed
    back: memory is free when no tensor but the one kept here shares it, and autograd, a checkpoint or a view are
    readers like any other.
    """

    def __init__(self) -> None:
        self._rows: dict[str, _Row] = {}

    def like(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Name -> memory of that tensor's shape and memory order, whatever it contains."""
        return {name: self._like(name, tensor) for name, tensor in tensors.items()}

    def _like(self, name: str, tensor: Tensor) -> Tensor:
        row = self._rows.setdefault(name, _Row())
        memory = row.take_spare()
        # another tensor over the same memory, by which its readers are counted
        return row.lend(torch.empty_like(tensor) if memory is None else memory).data

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
            if name in self._rows and _fits(tensor, weights[name]):
                self._rows[name].adopt(tensor.detach())

    def free(self) -> None:
        """Gives back what nobody reads."""
        for row in self._rows.values():
            row.free()

    def trim(self) -> None:
        """Gives back what nobody reads; of a long history sometimes all, mostly what is found at once."""
        for row in self._rows.values():
            row.trim()


class _Row:
    """The memory for one weight: what was lent last, ..., what was lent first, what was adopted.

    A pipeline of hundreds of stages has as many sets of each weight in use, and reads them in the order in which they
    were made, or for a moment: what is spare lies at an end. All of a long row is looked at only once half of it is
    new.
    """

    def __init__(self) -> None:
        self._memory: list[Tensor] = []
        self._added = 0

    def __len__(self) -> int:
        return len(self._memory)

    def lend(self, memory: Tensor) -> Tensor:
        """Puts memory first, to be lent again first: beside a set that lies idle, an adopted one would be one more."""
        self._memory.insert(0, memory)
        self._added += 1
        return memory

    def adopt(self, memory: Tensor) -> None:
        """Puts memory last."""
        self._memory.append(memory)
        self._added += 1

    def take_spare(self) -> Tensor | None:
        """Memory that nobody reads, which the row then has no longer; None where none was found."""
        spare = next((place for place in self._ends() if _is_spare(self._memory[place])), None)
        return None if spare is None else self._memory.pop(spare)

    def trim(self) -> None:
        """Forgets what nobody reads, as far as it looks."""
        if 2 * self._added >= len(self._memory):
            self.free()
            return
        for spare in [place for place in reversed(self._ends()) if _is_spare(self._memory[place])]:
            del self._memory[spare]

    def free(self) -> None:
        """Forgets what nobody reads."""
        self._memory = [memory for memory in self._memory if not _is_spare(memory)]
        self._added = 0

    def _ends(self) -> Sequence[int]:
        """The first places and the last; all of a short row."""
        length = len(self._memory)
        return range(length) if length <= _FIRST + _LAST else (*range(_FIRST), *range(length - _LAST, length))


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
