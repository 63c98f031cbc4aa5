"""TAH-Quant: tiles, a Hadamard transform of tiles with an outlier, and fewer bits for tokens of low entropy."""

import math
from fractions import Fraction
from functools import cache

import torch
from torch import Tensor
from typing_extensions import override

from pipetrain.engine.errors import ConfigError, check_whole
from pipetrain.engine.number_range import SHARE
from pipetrain.engine.tensors import Tensors
from pipetrain.zoo.messages.base import MessageFormat, MessageTensor
from pipetrain.zoo.messages.integers import check_bits
from pipetrain.zoo.messages.values import computed, packed, unpacked

_TINY = 1e-30
_OUTLIER = 2
"""A tile is transformed if its largest value is so many times its second largest, in magnitude."""


class TahQuant(MessageFormat):
    """Quantizes tiles of each token, asymmetrically (He et al. 2025, with the allocation by tokens of its version 1).

    A tensor (n, s, …) has n samples of s tokens; one of fewer dimensions has a token for each sample.

    Args:
        bits: of a value, in most tokens.
        low_bits: in those of lowest entropy, at most `bits`.
        share: of the tokens of a sample that have `bits`.
        tile: values of a tile, a power of two from 2 to 256.
    """

    name = "tah"
    parts = 7
    not_for_gradients = (
        "TAH-Quant is for activations, and float16 would not hold the scales of gradients; messages.gradients=int4 and "
        "fp8 work"
    )

    def __init__(self, bits: int = 4, low_bits: int = 3, share: float = 0.8, tile: int = 64) -> None:
        check_bits("bits", bits)
        check_bits("low_bits", low_bits)
        if low_bits > bits:
            raise ConfigError(f"low_bits={low_bits}: must be at most bits={bits}")
        SHARE.check("share", share)
        check_whole("tile", tile, least=2)
        if tile > 256 or tile & (tile - 1):
            raise ConfigError(f"tile={tile}: must be a power of two of at most 256")
        self.bits, self.low_bits, self.share, self.tile = bits, low_bits, share, tile

    def _shape(self, shape: torch.Size) -> tuple[int, int, int]:
        """Samples, tokens of a sample, and values of a token."""
        samples, tokens = shape[0], shape[1] if len(shape) > 2 else 1
        return samples, tokens, math.prod(shape) // (samples * tokens)

    def _low(self, tokens: int) -> int:
        return math.floor(tokens * (1 - Fraction(str(self.share))))  # a float of 1 - 0.9 is below 0.1

    @override
    def encode(self, tensor: Tensor, of: MessageTensor) -> Tensors:
        samples, tokens, width = self._shape(tensor.shape)
        values = computed(tensor).reshape(samples, tokens, width)
        is_low = torch.zeros(samples, tokens, dtype=torch.bool, device=values.device)
        is_low.scatter_(1, _entropy(values).argsort(dim=1, stable=True)[:, : self._low(tokens)], value=True)
        missing = -width % self.tile
        values = torch.cat((values, values[..., -1:].expand(-1, -1, missing)), 2).view(samples, tokens, -1, self.tile)
        sizes, places = values.abs().topk(2)
        turned, pivots = sizes[..., 0] >= _OUTLIER * sizes[..., 1], places[..., 0]
        values = torch.where(turned[..., None], _swapped(values, pivots) @ _hadamard(values), values)
        zeros = values.amin(-1).half()
        levels = torch.where(is_low, 2**self.low_bits - 1, 2**self.bits - 1)[..., None, None]
        shifted = values - zeros[..., None]
        scales = (shifted.amax(-1, keepdim=True) / levels).half()
        codes = (shifted / scales.to(values.dtype).clamp_min(_TINY)).round_().clamp_min(0).minimum(levels)
        low, high = self._split(codes.to(torch.uint8).view(samples, tokens, -1), is_low)
        return (
            packed(low, self.low_bits),
            packed(high, self.bits),
            zeros,
            scales,
            packed(is_low.to(torch.uint8).view(-1), 1),
            packed(turned.to(torch.uint8).view(-1), 1),
            packed(pivots.to(torch.uint8).view(-1), self._pivot_bits),
        )

    @property
    def _pivot_bits(self) -> int:
        return self.tile.bit_length() - 1

    def _order(self, is_low: Tensor) -> tuple[Tensor, Tensor]:
        """Indices of the tokens of each sample with fewer bits, and of the others, ascending."""
        order = is_low.to(torch.uint8).argsort(dim=1, descending=True, stable=True)
        return order.tensor_split([self._low(is_low.shape[1])], 1)  # type: ignore[return-value]

    def _split(self, codes: Tensor, is_low: Tensor) -> list[Tensor]:
        return [_taken(codes, tokens).reshape(-1) for tokens in self._order(is_low)]

    @override
    def decode(self, parts: Tensors, out: Tensor, of: MessageTensor) -> None:
        low, high, zeros, scales, is_low, turned, pivots = parts
        samples, tokens, width = self._shape(out.shape)
        tiles = -(-width // self.tile)
        low_tokens = unpacked(is_low, 1, samples * tokens).view(samples, tokens)
        codes = torch.empty(samples, tokens, tiles * self.tile, dtype=torch.uint8, device=out.device)
        for content, bits, chosen in zip((low, high), (self.low_bits, self.bits), self._order(low_tokens), strict=True):
            count = chosen.shape[1] * tiles * self.tile
            these = unpacked(content, bits, samples * count).view(samples, -1, codes.shape[2])
            codes.scatter_(1, chosen[..., None].expand_as(these), these)
        kind = torch.promote_types(out.dtype, torch.float32)
        values = codes.view(samples, tokens, tiles, self.tile).to(kind) * scales.to(kind) + zeros[..., None].to(kind)
        many = samples * tokens * tiles
        places = unpacked(pivots, self._pivot_bits, many).view(samples, tokens, tiles).long()
        back = _swapped(values @ _hadamard(values), places)
        turned = unpacked(turned, 1, many).view(samples, tokens, tiles, 1).bool()
        out.copy_(torch.where(turned, back, values).view(samples, tokens, -1)[..., :width].reshape(out.shape))


def _entropy(values: Tensor) -> Tensor:
    """Entropy of the magnitudes of each token, as shares of their sum."""
    shares = values.abs()
    shares = shares / (shares.sum(-1, keepdim=True) + _TINY)
    return -(shares * (shares + _TINY).log()).sum(-1)


def _swapped(tiles: Tensor, pivots: Tensor) -> Tensor:
    """Tiles with the value at the pivot and the first one exchanged."""
    order = torch.arange(tiles.shape[-1], device=tiles.device).expand_as(tiles).clone()
    order.scatter_(-1, pivots[..., None], 0)
    order[..., 0] = pivots
    return tiles.gather(-1, order)


def _taken(codes: Tensor, tokens: Tensor) -> Tensor:
    return codes.gather(1, tokens[..., None].expand(-1, -1, codes.shape[2]))


def _hadamard(tiles: Tensor) -> Tensor:
    """The Hadamard matrix of a tile, orthonormal and symmetric."""
    return _sylvester(tiles.shape[-1], tiles.dtype, tiles.device)


@cache
def _sylvester(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    matrix = torch.ones(1, 1, dtype=dtype)
    while len(matrix) < size:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    return (matrix / math.sqrt(size)).to(device)
