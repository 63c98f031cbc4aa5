"""Weights that several layers share, by their sizes; a module without torch, for plans by a profile."""

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class SharedWeight:
    """Weights that the same set of layers shares.

    Attributes:
        layers: their indices, ascending, two or more.
        weight_bytes: total bytes of the weights that exactly these layers share; each layer counts them as its own.
        state_bytes: of the optimizer's state of these weights, likewise; not part of a file.
    """

    layers: tuple[int, ...]
    weight_bytes: int
    state_bytes: int = 0

    def repeats(self, layers: Collection[int]) -> int:
        """Number of times that these layers, each with its own weight, would count too many."""
        return max(0, sum(layer in layers for layer in self.layers) - 1)

    def counted_again(self, layers: Collection[int]) -> int:
        """Bytes that would be counted in excess if each of these layers had its own weight."""
        return self.repeats(layers) * self.weight_bytes
