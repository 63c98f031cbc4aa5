"""Tensors at a cut: values and memory order, the same through a message and inside one process."""

from collections.abc import Iterable, Mapping

from torch import Tensor

Tensors = tuple[Tensor, ...]
"""Inputs or outputs of a layer, and the tensors that cross a cut."""


def is_dense(tensor: Tensor) -> bool:
    """True if the tensor fills its stretch of memory exactly, in whatever order of dimensions."""
    if tensor.is_contiguous():  # as most are: torch knows at once
        return True
    expected = 1
    for stride, size in sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def dense(tensor: Tensor) -> Tensor:
    """The tensor itself if dense, else its contiguous copy: other strides make other kernels, and so other bits."""
    return tensor if tensor.numel() == 0 or is_dense(tensor) else tensor.contiguous()


def flat(tensor: Tensor) -> Tensor:
    """A dense tensor's memory as one dimension, in its own order."""
    return tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset())


def storage_pointers(tensors: Iterable[Tensor | None]) -> set[int]:
    """Where the storages of the tensors begin: two that share one write into each other."""
    return {tensor.untyped_storage().data_ptr() for tensor in tensors if tensor is not None}


def new_leaves_sharing_memory(tensors: Mapping[str, Tensor], requires_grad: Mapping[str, bool]) -> dict[str, Tensor]:
    """New leaves of autograd over the memory of these tensors, by name."""
    return {name: tensor.detach().requires_grad_(requires_grad[name]) for name, tensor in tensors.items()}


def dense_copy(tensor: Tensor) -> Tensor:
    """Copy as the other side of a cut would receive it: same values, same strides, separate memory."""
    return dense(tensor).clone()  # which keeps the strides of a dense tensor
