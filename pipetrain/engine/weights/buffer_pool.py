"""Memory of weights that are no longer read, used again for the weights that are made next."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pipetrain.engine.tensors import is_dense

_FIRST, _LAST = 3, 2
"""Number of buffers at each end of a long list that are looked at."""


def _use_count(storage: int) -> int:
    """Number of tensors that share a storage, given its identity, and one more where another object holds it."""
    return torch._C._storage_Use_Count(storage)


class _Buffer(NamedTuple):
    """A tensor over the whole of a storage.

    Attributes:
        storage: its identity, by which torch counts its readers.
    """

    tensor: Tensor
    storage: int

    @classmethod
    def of(cls, tensor: Tensor) -> "_Buffer":
        return cls(tensor, tensor.untyped_storage()._cdata)

    @property
    def free(self) -> bool:
        """True if no other tensor shares the memory."""
        return _use_count(self.storage) == _UNSHARED


_ALONE = _Buffer.of(torch.empty(1))
_UNSHARED = _use_count(_ALONE.storage)


def check_use_count() -> None:
    """Checks that torch counts every kind of reader of a tensor's memory.

    Raises:
        RuntimeError: it does not; weights in use would be overwritten.
    """
    readers: Mapping[str, Callable[[Tensor], object]] = {
        "a view": lambda lent: lent[:1],
        "a detached tensor": lambda lent: lent.detach(),
        "a tensor saved for backward": lambda lent: torch.ones(2, requires_grad=True) * lent,
    }
    for kind, read in readers.items():
        memory = torch.empty(2)
        buffer = _Buffer.of(memory)
        with torch.inference_mode(mode=False), torch.enable_grad():
            reader = read(memory.data)
        counted = not buffer.free
        del reader
        if not counted or not buffer.free:
            raise RuntimeError(f"torch {torch.__version__} miscounts {kind} in torch._C._storage_Use_Count")


check_use_count()


class WeightBufferPool:
    """Memory for sets of weights, which is used again once its last reader is gone.

    Writing to memory that the system has just given costs several times as much as writing to it again.

    No call returns memory, for its readers are not known here: a version is read by the stage, by autograd's graphs, by
    a checkpoint that is being written, and by any view of it.

    1. The pool keeps one tensor over each buffer, and lends another over the same memory.
    2. Every reader holds the tensor that was lent, or one made from it. All of them count as users of the storage.
    3. A buffer whose storage has a single user, the pool's own tensor, is free.
    """

    def __init__(self) -> None:
        self._by_name: dict[str, _Buffers] = {}

    def empty_like(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Name -> uninitialized tensor of that tensor's shape, strides and type."""
        return {name: self._by_name.setdefault(name, _Buffers()).lend(tensor) for name, tensor in tensors.items()}

    def copy(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A copy of each."""
        copies = self.empty_like(tensors)
        if copies:
            torch._foreach_copy_(list(copies.values()), list(tensors.values()))
        return copies

    def donate(self, tensors: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
        """Adds the memory of tensors that are no longer needed, such as gradients, for the weights of the same names.

        Ignores weights that were never lent memory, and tensors that differ in shape, strides or type.
        """
        for name, tensor in tensors.items():
            if name in self._by_name and _fits(tensor, weights[name]):
                self._by_name[name].add(tensor.detach())

    def free(self) -> None:
        """Frees all memory that is not read."""
        for buffers in self._by_name.values():
            buffers.free()

    def trim(self) -> None:
        """Frees memory that is not read; of a long list mostly at its ends."""
        for buffers in self._by_name.values():
            buffers.trim()


class _Buffers:
    """The buffers of one weight, the one lent last first, donated ones at the end.

    A pipeline of hundreds of stages uses hundreds of sets of each weight. It reads them in the order in which they were
    made, or only for a moment, so the free ones are at the ends. A long list is searched as a whole only after as many
    additions as half of its length.
    """

    def __init__(self) -> None:
        self._memory: list[_Buffer] = []
        self._added = 0

    def __len__(self) -> int:
        return len(self._memory)

    def lend(self, weight: Tensor) -> Tensor:
        """A tensor for a weight, over the first free buffer or a new one.

        The buffer is put first, to be lent first again: a donated one in use next to an idle one would be one too many.
        """
        free = next((i for i in self._ends() if self._memory[i].free), None)
        self._memory.insert(0, _Buffer.of(torch.empty_like(weight)) if free is None else self._memory.pop(free))
        self._added += 1
        return self._memory[0].tensor.data

    def add(self, memory: Tensor) -> None:
        """Adds a buffer at the end."""
        self._memory.append(_Buffer.of(memory))
        self._added += 1

    def trim(self) -> None:
        """Frees the free buffers that it sees."""
        if 2 * self._added >= len(self._memory):
            self.free()
            return
        for i in [i for i in reversed(self._ends()) if self._memory[i].free]:
            del self._memory[i]

    def free(self) -> None:
        """Frees all free buffers."""
        self._memory = [buffer for buffer in self._memory if not buffer.free]
        self._added = 0

    def _ends(self) -> Sequence[int]:
        """Indices of the first and last buffers; of all if there are few."""
        length = len(self._memory)
        return range(length) if length <= _FIRST + _LAST else (*range(_FIRST), *range(length - _LAST, length))


def _fits(tensor: Tensor, weight: Tensor) -> bool:
    """True if the tensor is a whole array of the weight's form."""
    return (
        tensor.dtype == weight.dtype
        and tensor.device == weight.device
        and tensor.shape == weight.shape
        and tensor.stride() == weight.stride()
        and tensor.untyped_storage().nbytes() == weight.nbytes
        and is_dense(tensor)
    )
