"""Messages in floating-point numbers of eight bits."""

import copy
from typing import Literal, Self

import torch
from torch import Tensor
from typing_extensions import override

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.tensors import Tensors
from pipetrain.zoo.messages.base import Direction, MessageFormat, MessageTensor
from pipetrain.zoo.messages.values import computed

_TYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
_USUAL = {Direction.ACTIVATIONS: "e4m3", Direction.GRADIENTS: "e5m2"}


class Fp8(MessageFormat):
    """Scales to the range of an 8-bit type, and rounds to the nearest (Micikevicius et al. 2022).

    Args:
        kind: e4m3 or e5m2; None: e4m3 for activations, e5m2 for gradients.
        scale: one for a `tensor`, or for each `row` along its last dimension.
    """

    name = "fp8"
    parts = 2

    def __init__(self, kind: Literal["e4m3", "e5m2"] | None = None, scale: Literal["tensor", "row"] = "tensor") -> None:
        if scale not in ("tensor", "row"):
            raise ConfigError(f"scale={scale}: must be tensor or row")
        if kind is not None and kind not in _TYPES:
            raise ConfigError(f"kind={kind}: must be one of {', '.join(_TYPES)}, or null")
        self.kind: str | None = kind
        self.scale = scale

    @override
    def meant_for(self, direction: Direction) -> Self:
        found = copy.copy(self)
        found.kind = self.kind or _USUAL[direction]
        return found

    @override
    def encode(self, tensor: Tensor, of: MessageTensor) -> Tensors:
        values, kind = computed(tensor), _TYPES[self.kind or "e4m3"]
        sizes = values.abs()
        most = sizes.amax(-1, keepdim=True) if self.scale == "row" else sizes.amax()
        scales = (most / torch.finfo(kind).max).clamp_min(torch.finfo(most.dtype).tiny)
        return (values / scales).to(kind), scales

    @override
    def decode(self, parts: Tensors, out: Tensor, of: MessageTensor) -> None:
        values, scales = parts
        out.copy_(values.to(scales.dtype).mul_(scales))
