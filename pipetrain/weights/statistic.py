"""A running statistic of a stage's weights, which a method brings and reads in its transforms."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class WeightStatistic(Protocol):
    """Follows the updates of a stage's trainable weights, such as an average of what they change.

    A stage keeps it from the start of the phase to its end, through all drains, and checkpoints hold its state.

    Attributes:
        name: what checkpoints call it; no two kinds share one.
        passes: how often `follow` reads or writes each weight or what it keeps of it; partitions count this.
    """

    name: ClassVar[str]
    passes: ClassVar[int] = 8

    def follow(self, before: "Mapping[str, Tensor]", after: "Mapping[str, Tensor]") -> None:
        """Takes in one update, given the weights before and after it by name; they are the stage's, to be read only."""
        ...

    def state(self) -> "dict[str, Tensor]":
        """Weight name -> tensor of any shape: all that a resumed run needs."""
        ...

    def load_state(self, state: "Mapping[str, Tensor]") -> None:
        """Puts back what `state` gave, which may be on another device."""
        ...
