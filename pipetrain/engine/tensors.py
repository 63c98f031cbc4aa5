"""Tensors at a cut: values and memory order, the same through a message and inside one process."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

Tensors = tuple[Tensor, ...]
"""Inputs or outputs of a layer, and the tensors that cross a cut."""


def is_dense(tensor: Tensor) -> bool:
    """True if the tensor fills its stretch of memory exactly, in whatever order of dimensions."""
    if tensor.is_contiguous():  # as most are, and all without elements: torch knows at once
        return True
    expected = 1
    for stride, size in sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def dense(tensor: Tensor) -> Tensor:
    """The tensor itself if dense, else its contiguous copy: other strides make other kernels, and so other bits.

    Autograd may give the conjugate of a tensor as a view of its memory; that is copied, too.
    """
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.clone()
    return tensor if tensor.is_contiguous() or is_dense(tensor) else tensor.contiguous()


def differentiable(tensor: Tensor) -> bool:
    """True if the tensor's type can have a gradient."""
    return tensor.is_floating_point() or tensor.is_complex()


def as_real(tensor: Tensor) -> Tensor:
    """A complex tensor's memory as its real and imaginary parts, in a dimension more; a real tensor itself."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def flat(tensor: Tensor) -> Tensor:
    """A dense tensor's memory as one dimension, in its own order."""
    return tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset())


def bytes_of(tensor: Tensor) -> Tensor:
    """A dense tensor's memory as bytes, in one dimension."""
    return flat(tensor).view(torch.uint8)


def storage_pointers(tensors: Iterable[Tensor | None]) -> set[int]:
    """Where the storages of the tensors begin: two that share one write into each other."""
    return {tensor.untyped_storage().data_ptr() for tensor in tensors if tensor is not None}


def new_leaves_sharing_memory(tensors: Mapping[str, Tensor], requires_grad: Mapping[str, bool]) -> dict[str, Tensor]:
    """New leaves of autograd over the memory of these tensors, by name."""
    return {name: tensor.detach().requires_grad_(requires_grad[name]) for name, tensor in tensors.items()}


def close(one: Tensor | None, other: Tensor | None, tolerance: float = 0.0) -> bool:
    """True if both have the same shape and, up to a relative `tolerance`, the same values; True if both are None.

    They are compared in the wider of their dtypes. NaN equals NaN. The absolute tolerance is a tenth of the relative.
    """
    if one is None or other is None:
        return one is other
    dtype = torch.promote_types(one.dtype, other.dtype)
    if dtype.itemsize == 1 and dtype.is_floating_point:
        dtype = torch.float32
    a, b = (each.to_dense().to(dtype) if each.layout != torch.strided else each.to(dtype) for each in (one, other))
    if a.shape != b.shape or not (dtype.is_floating_point or dtype.is_complex):
        return torch.equal(a, b)
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance / 10, equal_nan=True)


def dense_copy(tensor: Tensor) -> Tensor:
    """Copy as the other side of a cut would receive it: same values, same strides, separate memory."""
    return dense(tensor).clone()  # which keeps the strides of a dense tensor
