"""Values of tensors in groups, quantized, and packed into bytes."""

import torch
from torch import Tensor

from pipetrain.engine.tensors import flat

_PER_WORD = 8


def computed(tensor: Tensor) -> Tensor:
    """A tensor in the type that formats compute with: float32, or float64 if it is that."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def in_memory_order(tensor: Tensor) -> Tensor:
    """Values of a dense tensor, one after the other as in its memory, in the type that formats compute with."""
    return computed(flat(tensor))


def in_groups(values: Tensor, size: int) -> Tensor:
    """Values (n,) as (groups, size); zeros fill the last group."""
    missing = -len(values) % size
    return (torch.nn.functional.pad(values, (0, missing)) if missing else values).view(-1, size)


def quantized(values: Tensor, bits: int, group: int, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Codes (n,) of values (n,), uint8 and below 2^bits, and the scales (groups,).

    A group of values x has the scale s = max |x| / L, with L = 2^(bits-1) - 1, or the smallest normal number if that is
    larger. The codes are round(x / s) + L, or with a generator floor(x / s + u) + L with u uniform in [0, 1). Fewer
    values than `group` are one group.
    """
    levels, grouped = 2 ** (bits - 1) - 1, in_groups(values, min(group, len(values)))
    scales = grouped.abs().amax(1).div_(levels).clamp_min_(torch.finfo(values.dtype).tiny)
    codes = grouped / scales[:, None]
    if generator is None:
        codes.round_()
    else:
        codes.add_(torch.rand(codes.shape, generator=generator, dtype=codes.dtype, device=codes.device)).floor_()
    return codes.clamp_(-levels, levels).add_(levels).to(torch.uint8).view(-1)[: len(values)], scales


def dequantized(codes: Tensor, scales: Tensor, bits: int, group: int) -> Tensor:
    """Values (n,) of codes (n,), by the scale of each group."""
    values = in_groups(codes.to(scales.dtype).sub_(2 ** (bits - 1) - 1), min(group, len(codes)))
    return values.mul_(scales[:, None]).view(-1)[: len(codes)]


def packed(codes: Tensor, bits: int) -> Tensor:
    """Codes (n,), uint8 and below 2^bits, in about n · bits / 8 bytes; `unpacked` is the inverse."""
    if bits == 8:
        return codes
    if bits == 4:
        pairs = in_groups(codes, 2)
        return pairs[:, 0] | pairs[:, 1] << 4
    words: Tensor = (in_groups(codes, _PER_WORD).long() << _shifts(bits, codes.device)).sum(1)
    return words.view(torch.uint8).view(-1, _PER_WORD)[:, :bits].reshape(-1)


def unpacked(content: Tensor, bits: int, count: int) -> Tensor:
    """The first `count` codes of packed ones, uint8."""
    if bits == 8:
        return content
    if bits == 4:
        return torch.stack((content & 15, content >> 4), 1).view(-1)[:count]
    words = torch.nn.functional.pad(content.view(-1, bits), (0, _PER_WORD - bits)).view(torch.int64)
    codes: Tensor = words >> _shifts(bits, content.device) & 2**bits - 1
    return codes.to(torch.uint8).view(-1)[:count]


def _shifts(bits: int, device: torch.device) -> Tensor:
    return torch.arange(0, _PER_WORD * bits, bits, device=device)
