"""Running statistics of a stage's weights, which a method brings and reads in its transforms."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Protocol

from typing_extensions import override

if TYPE_CHECKING:
    from torch import Tensor


class WeightStatistic(Protocol):
    """Follows the updates of a stage's trainable weights, such as an average of their changes.

    A stage keeps it from the start of the phase to its end, through all drains, and checkpoints hold its state.

    Attributes:
        name: in checkpoints; unique.
        passes: number of times that `follow` reads or writes each weight or its state; partitions count this.
    """

    name: ClassVar[str]
    passes: ClassVar[int] = 8

    def follow(self, before: "Mapping[str, Tensor]", after: "Mapping[str, Tensor]") -> None:
        """Takes in one update, given the weights before and after it by name, which are only to be read."""

    def state(self) -> "dict[str, Tensor]":
        """Weight name -> tensor of any shape: the state that a resumed run needs."""

    def load_state(self, state: "Mapping[str, Tensor]") -> None:
        """Restores the output of `state`, which may be on another device."""


class UpdateAverage(WeightStatistic):
    """δ, kept for each weight: after an update δ <- γδ + (1 - γ)(W_new - W_old), γ its `decay` (PipeMare § 3.2)."""

    name: ClassVar[str] = "update_average"

    def __init__(self, decay: float, weights: "Mapping[str, Tensor]") -> None:
        self.decay = decay
        self.average: dict[str, Tensor] = {}
        """Weight name -> δ, 0 before the first update."""
        if weights:  # a plan gives none, and does not wait for torch
            import torch

            self.average = {name: torch.zeros_like(weight) for name, weight in weights.items()}

    @override
    def follow(self, before: "Mapping[str, Tensor]", after: "Mapping[str, Tensor]") -> None:
        import torch

        from pipetrain.engine.device_queue import together

        for names in together(self.average):
            averages, old, new = ([weights[name] for name in names] for weights in (self.average, before, after))
            torch._foreach_mul_(averages, self.decay)
            torch._foreach_add_(averages, torch._foreach_sub(new, old), alpha=1 - self.decay)

    @override
    def state(self) -> "dict[str, Tensor]":
        return self.average

    @override
    def load_state(self, state: "Mapping[str, Tensor]") -> None:
        for name in self.average.keys() & state.keys():  # a weight that was not trained before has none
            self.average[name].copy_(state[name])


class LastChange(UpdateAverage):
    """The last change of each weight, 0 before the first update: δ with γ = 0."""

    name: ClassVar[str] = "last_change"  # another, so that no resumed run goes on from PipeMare's δ

    def __init__(self, weights: "Mapping[str, Tensor]") -> None:
        super().__init__(0.0, weights)
