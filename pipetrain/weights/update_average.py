"""The running average of what each update changes: δ of PipeMare."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from pipetrain.weights.statistic import WeightStatistic

if TYPE_CHECKING:
    from torch import Tensor


class UpdateAverage(WeightStatistic):
    """δ, kept for each weight: after an update δ <- γδ + (1 - γ)(W_new - W_old) (PipeMare § 3.2).

    Args:
        decay: γ; 0 keeps the last change alone.
        weights: name -> weight.

    Attributes:
        average: weight name -> δ, 0 before the first update.
    """

    name: ClassVar[str] = "update_average"

    def __init__(self, decay: float, weights: "Mapping[str, Tensor]") -> None:
        self.decay = decay
        self.average: dict[str, Tensor] = {}
        if weights:  # a plan gives none, and does not wait for torch
            import torch

            self.average = {name: torch.zeros_like(weight) for name, weight in weights.items()}

    @override
    def follow(self, before: "Mapping[str, Tensor]", after: "Mapping[str, Tensor]") -> None:
        import torch

        from pipetrain.device_queue import together

        for names in together(self.average):
            averages, old, new = ([weights[name] for name in names] for weights in (self.average, before, after))
            torch._foreach_mul_(averages, self.decay)
            torch._foreach_add_(averages, torch._foreach_sub(new, old), alpha=1 - self.decay)

    @override
    def state(self) -> "dict[str, Tensor]":
        return self.average

    @override
    def load_state(self, state: "Mapping[str, Tensor]") -> None:
        for name, average in self.average.items():
            average.copy_(state[name])
