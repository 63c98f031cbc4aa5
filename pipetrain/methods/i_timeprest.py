"""I-TiMePReSt: the backward reads the forward's weights, shrunk by how stale they have become."""

import math
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from pipetrain.errors import ConfigError
from pipetrain.methods.base import Method
from pipetrain.program.weight_reads import ReadContext, StageContext, WeightRead
from pipetrain.schedules.base import Family
from pipetrain.weights.transforms import Scaled

_LARGE_CHANGE = 0.5


@dataclass(frozen=True)
class ITiMePReSt(Method):
    """F reads W_now; B reads (2 - e^(λδ)) · W_F, δ the updates since F read W_F (I-TiMePReSt § 3).

    Attributes:
        staleness_decay: λ, above 0. The paper does not give its value.
    """

    name: ClassVar[str] = "i_timeprest"
    family: ClassVar[Family] = Family.WHOLE_BACKWARD
    staleness_decay: float = 0.01

    def __post_init__(self) -> None:
        if not isinstance(self.staleness_decay, int | float) or not self.staleness_decay > 0:
            raise ConfigError(f"method.staleness_decay={self.staleness_decay}: above 0, such as 0.01")

    def _factor(self, updates: int) -> float:
        return 2.0 - math.exp(self.staleness_decay * updates)

    @override
    def backward(self, at: ReadContext, forward: WeightRead) -> WeightRead:
        age = at.newest - forward.version
        return WeightRead(forward.version, Scaled(self._factor(age)) if age else None)

    @override
    def recomputation(self, at: ReadContext, forward: WeightRead) -> WeightRead:
        return forward

    @override
    def weight_versions(self, context: StageContext) -> int:
        """The stashed versions, and the scaled one of a backward."""
        return context.delay + 2 if context.delay else 1

    @override
    def notes(self, contexts: list[StageContext]) -> list[str]:
        worst = max(contexts, key=lambda context: context.delay)
        factor = self._factor(worst.delay)
        lines = [
            f"method.staleness_decay={self.staleness_decay}: backwards scale their weights by as little as {factor:.4g}"
        ]
        if factor < _LARGE_CHANGE:
            lines.append(
                f"warning: the factor 2 - e^(λδ) = {factor:.4g} of stage {worst.stage} is below {_LARGE_CHANGE}; lower "
                "method.staleness_decay or use fewer stages"
            )
        return lines
