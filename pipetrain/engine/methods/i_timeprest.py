"""I-TiMePReSt: the backward reads the forward's weights, shrunk by how stale they have become."""

import math
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from pipetrain.engine.methods.base import Method
from pipetrain.engine.number_range import POSITIVE
from pipetrain.engine.program.weight_reads import ReadContext, StageContext, WeightRead
from pipetrain.engine.schedules.base import Family
from pipetrain.engine.weights.transforms import Scaled

_LARGE_CHANGE = 0.5
_LARGEST_EXPONENT = 700.0  # math.exp overflows above 709.78


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
        POSITIVE.check("method.staleness_decay", self.staleness_decay)

    def _factor(self, updates: int) -> float:
        return 2.0 - math.exp(min(self.staleness_decay * updates, _LARGEST_EXPONENT))

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
