"""Where torch has a fused step for an optimizer: one pass over a weight and its state in place of one per operation."""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer

_DEVICES: dict[type[Optimizer], tuple[str, ...]] = {
    SGD: ("cpu", "cuda"),
    Adam: ("cpu", "cuda"),
    AdamW: ("cpu", "cuda"),
    Adagrad: ("cpu",),  # torch 2.11 refuses it on CUDA
}
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def can_be_fused(optimizer: Optimizer, parameters: Iterable[Tensor]) -> bool:
    """Whether the same optimizer of these parameters may be built with `fused=True`: the user's own choice stays."""
    settings, devices = optimizer.defaults, _DEVICES.get(type(optimizer), ())
    chosen = any(settings.get(form) is not None for form in ("fused", "foreach"))
    other = any(settings.get(form) for form in ("capturable", "differentiable"))
    return not (chosen or other) and all(p.device.type in devices and p.dtype in _DTYPES for p in parameters)
