"""Messages in integers of few bits."""

from typing import Literal

from torch import Tensor
from typing_extensions import override

from pipetrain.engine.errors import ConfigError, check_whole
from pipetrain.engine.tensors import Tensors, flat
from pipetrain.zoo.messages.base import MessageFormat, MessageTensor
from pipetrain.zoo.messages.values import dequantized, in_memory_order, packed, quantized, unpacked


class Integers(MessageFormat):
    """Quantizes groups of values, consecutive in memory, symmetrically and by their largest.

    Args:
        bits: of a value, 2 to 8.
        group: values that share a scale.
        rounding: `nearest`, or `stochastic`, which is right in the mean.
    """

    name = "int8"
    parts = 2

    def __init__(self, bits: int = 8, group: int = 64, rounding: Literal["nearest", "stochastic"] = "nearest") -> None:
        check_bits("bits", bits)
        check_whole("group", group, least=1)
        if rounding not in ("nearest", "stochastic"):
            raise ConfigError(f"rounding={rounding}: must be nearest or stochastic")
        self.name = f"int{bits}"
        self.bits, self.group, self.rounding = bits, group, rounding

    @override
    def encode(self, tensor: Tensor, of: MessageTensor) -> Tensors:
        return self.encoded(in_memory_order(tensor), of)

    @override
    def decode(self, parts: Tensors, out: Tensor, of: MessageTensor) -> None:
        flat(out).copy_(self.decoded(parts, out.numel()))

    def encoded(self, values: Tensor, of: MessageTensor) -> Tensors:
        """The parts for values (n,)."""
        generator = of.generator(values.device) if self.rounding == "stochastic" else None
        codes, scales = quantized(values, self.bits, self.group, generator)
        return packed(codes, self.bits), scales

    def decoded(self, parts: Tensors, count: int) -> Tensor:
        """The values (n,) of parts."""
        content, scales = parts
        return dequantized(unpacked(content, self.bits, count), scales, self.bits, self.group)


def check_bits(name: str, bits: int) -> None:
    """Raises a ConfigError unless a code may have so many bits."""
    check_whole(name, bits, least=2)
    if bits > 8:
        raise ConfigError(f"{name}={bits}: must be at most 8")
