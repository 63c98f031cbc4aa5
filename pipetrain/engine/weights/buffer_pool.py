"""Memory of weights that are no longer read, used again for the weights that are made next."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

_FIRST, _LAST = 3, 2
"""Number of sets at each end of a long list that are looked at."""

_use_count: Callable[[int], int] = torch._C._storage_Use_Count
"""Number of tensors that share a storage, given its identity, and one more where another object holds it."""


def _identity(tensor: Tensor) -> int:
    """Identity of a tensor's storage, by which torch counts its readers."""
    identity: int = tensor.untyped_storage()._cdata
    return identity


_ALONE = torch.empty(1)
_UNSHARED = _use_count(_identity(_ALONE))


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
        with torch.inference_mode(mode=False), torch.enable_grad():
            reader = read(memory.data)
        counted = _use_count(_identity(memory)) > _UNSHARED
        del reader
        if not counted or _use_count(_identity(memory)) != _UNSHARED:
            raise RuntimeError(f"torch {torch.__version__} miscounts {kind} in torch._C._storage_Use_Count")


check_use_count()


class WeightBufferPool:
    """Memory for sets of weights, which is used again once its last reader is gone.

    Writing to memory that the system has just given costs several times as much as writing to it again.

    No call returns memory, for its readers are not known here: a version is read by the stage, by autograd's graphs, by
    a checkpoint that is being written, and by any view of it.

    1. The pool keeps one tensor over each buffer, and lends another over the same memory.
    2. Every reader holds the tensor that was lent, or one made from it. All of them count as users of the storage.
    3. A buffer whose storage has a single user, the pool's own tensor, is free. A set is, if all of its buffers are.

    The set lent last is the first, donated ones are at the end. A pipeline of hundreds of stages uses hundreds of sets.
    It reads them in the order in which they were made, or only for a moment, so the free ones are at the ends. A long
    list is searched as a whole only once half of its length has been added.
    """

    def __init__(self) -> None:
        self._sets: list[_BufferSet] = []
        self._forms: dict[str, tuple[Any, ...]] = {}
        """Form of each weight that memory was asked for."""
        self._added = 0

    def empty_like(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Name -> uninitialized tensor of that tensor's shape, strides and type, in the first free set or a new one.

        The set is put first, to be lent first again: a donated one in use next to an idle one would be one too many.
        """
        if not tensors:
            return {}
        free = next((i for i in self._ends() if self._sets[i].free), None)
        lent = _BufferSet({}) if free is None else self._sets.pop(free)
        for name in tensors.keys() - lent.buffers.keys():
            lent.add(name, torch.empty_like(tensors[name]))
            self._forms[name] = _form(lent.buffers[name])
        self._sets.insert(0, lent)
        self._added += 1
        return {name: lent.buffers[name].data for name in tensors}

    def copy(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A copy of each."""
        copies = self.empty_like(tensors)
        if copies:
            torch._foreach_copy_(list(copies.values()), list(tensors.values()))
        return copies

    def donate(self, tensors: Mapping[str, Tensor]) -> None:
        """Adds the memory of tensors that are no longer needed, such as gradients, for the weights of the same names.

        Ignores weights that were never lent memory, and tensors that are no whole array of the weight's form.
        """
        forms = self._forms
        donated = {name: each.data for name, each in tensors.items() if name in forms and _form(each) == forms[name]}
        if donated:
            self._sets.append(_BufferSet(donated))
            self._added += 1

    def free(self) -> None:
        """Frees all memory that is not read."""
        self._sets = [each for each in self._sets if each.keep_read()]
        self._added = 0

    def trim(self) -> None:
        """Frees memory that is not read; of a long list mostly at its ends."""
        if 2 * self._added >= len(self._sets):
            self.free()
            return
        for i in reversed(self._ends()):
            if self._sets[i].free:
                del self._sets[i]

    def _ends(self) -> Sequence[int]:
        """Indices of the first and last sets; of all if there are few."""
        length = len(self._sets)
        return range(length) if length <= _FIRST + _LAST else (*range(_FIRST), *range(length - _LAST, length))


class _BufferSet:
    """Memory for a set of weights, or for some of them: weight name -> a tensor over the whole of a storage."""

    def __init__(self, buffers: dict[str, Tensor]) -> None:
        self.buffers = buffers
        self._storages = {name: _identity(tensor) for name, tensor in buffers.items()}

    def add(self, name: str, buffer: Tensor) -> None:
        """Adds memory for a weight."""
        self.buffers[name], self._storages[name] = buffer, _identity(buffer)

    @property
    def free(self) -> bool:
        """True if nothing reads any of the buffers."""
        return all(count == _UNSHARED for count in map(_use_count, self._storages.values()))

    def keep_read(self) -> bool:
        """Frees the buffers that are not read; True if any are left."""
        if min(map(_use_count, self._storages.values())) > _UNSHARED:  # as mostly
            return True
        for name in [name for name, storage in self._storages.items() if _use_count(storage) == _UNSHARED]:
            del self.buffers[name], self._storages[name]
        return bool(self.buffers)


def _form(tensor: Tensor) -> tuple[Any, ...]:
    """Type, device, shape, strides and storage size; equal for whole arrays that can replace each other."""
    return tensor.dtype, tensor.device, tensor.shape, tensor.stride(), tensor.untyped_storage().nbytes()
