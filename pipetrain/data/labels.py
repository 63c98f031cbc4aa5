"""The class labels of a split, where they can be had without decoding its samples."""

from collections.abc import Sized
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

_WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def known_labels(split: Any) -> Tensor | None:
    """Those of all samples, in order: whole numbers (samples, ...). None where there are none, or samples must be read.

    They are those of `targets`, as torchvision's data sets have, of `target(i)`, or the last of a `TensorDataset`. What
    a sample's own label is, `label_of` says: a data set may transform its `targets` when it reads them.
    """
    if isinstance(split, Subset):
        inner = known_labels(split.dataset)
        return None if inner is None else inner[torch.as_tensor(split.indices, dtype=torch.int64)]
    labels = _as_tensor(_held(split))
    return labels if labels is not None and isinstance(split, Sized) and len(labels) == len(split) else None


def label_of(split: Any, index: int) -> Tensor | None:
    """The label of one sample, which is read; None where it is none."""
    target = split.target(index) if hasattr(split, "target") else split[index][1]
    return _as_tensor(target)


def _held(split: Any) -> Any:
    if isinstance(split, TensorDataset):
        return split.tensors[-1]
    if hasattr(split, "targets"):
        return split.targets
    return [split.target(index) for index in range(len(split))] if hasattr(split, "target") else None


def _as_tensor(labels: Any) -> Tensor | None:
    try:
        tensor = torch.as_tensor(labels)
    except (TypeError, ValueError, RuntimeError):
        return None
    return tensor if tensor.dtype in _WHOLE and tensor.numel() else None
