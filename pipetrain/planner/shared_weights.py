"""Weights that several layers of a profile share, which a stage holds once."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from pipetrain.errors import ConfigError, is_whole


@dataclass(frozen=True)
class SharedWeight:
    """What the same layers share.

    Attributes:
        layers: their indices, ascending, two at least; the weights of each contain it.
        weight_bytes: of all that just these share.
    """

    layers: tuple[int, ...]
    weight_bytes: int

    def to_json(self) -> dict[str, Any]:
        """An entry of a profile's file."""
        return {"layers": list(self.layers), "weight_bytes": self.weight_bytes}

    @classmethod
    def from_json(cls, content: Any, weight_bytes: Sequence[int]) -> Self:
        """The entry of a profile whose layers have so many bytes of weights.

        Raises:
            ConfigError: it names no two layers, or more bytes than one of them has.
        """
        layers, size = (content.get("layers"), content.get("weight_bytes")) if isinstance(content, dict) else (None, 0)
        count = len(weight_bytes)
        if (
            not isinstance(layers, list)
            or not all(is_whole(layer) and 0 <= layer < count for layer in layers)
            or len(set(layers)) < max(2, len(layers))
        ):
            raise ConfigError(f"a shared weight has layers={layers}: two or more of the {count} layers are needed")
        most = min(weight_bytes[layer] for layer in layers)
        if not is_whole(size) or not 0 <= size <= most:
            raise ConfigError(
                f"the weight that layers {layers} share has weight_bytes={size}: a whole number of at most {most}, "
                "which the smallest of them has, is needed"
            )
        return cls(tuple(sorted(layers)), size)

    def counted_again(self, layers: Collection[int]) -> int:
        """The bytes that too many would be counted if each of these layers had a weight of its own."""
        return max(0, sum(layer in layers for layer in self.layers) - 1) * self.weight_bytes


def moved(shared: Iterable[SharedWeight], places: Mapping[int, int]) -> tuple[SharedWeight, ...]:
    """The same weights once each layer is at another place; layers at one place are one."""
    others = (SharedWeight(tuple(sorted({places[i] for i in each.layers})), each.weight_bytes) for each in shared)
    return tuple(each for each in others if len(each.layers) > 1)
