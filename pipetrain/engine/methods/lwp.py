"""Linear weight prediction: F extrapolates the last update of the weights (Kosson et al. 2021)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from pipetrain.engine.methods.base import Method
from pipetrain.engine.program.weight_reads import ReadContext, StageContext, WeightRead
from pipetrain.engine.schedules.base import Family
from pipetrain.engine.weights.statistic import LastChange
from pipetrain.engine.weights.transforms import Corrected, StashedCorrection

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class LinearWeightPrediction(Method):
    """F reads W_t + s · (W_t - W_{t-1}), s the updates until its own B; B reads the newest (their LWPw).

    Attributes:
        stash: B reads what F read, as under weight stashing.
    """

    name: ClassVar[str] = "lwp"
    family: ClassVar[Family] = Family.CONTINUOUS
    stash: bool = False

    @override
    def forward(self, at: ReadContext) -> WeightRead:
        steps = at.updates_until_backward
        predicted = StashedCorrection if self.stash else Corrected
        return WeightRead(at.newest, predicted(-steps) if steps else None)

    @override
    def backward(self, at: ReadContext, forward: WeightRead) -> WeightRead:
        return forward if self.stash else WeightRead(at.newest)

    @override
    def statistic(self, context: StageContext, weights: "Mapping[str, Tensor]") -> LastChange | None:
        """W_t - W_{t-1}; None if no forward looks ahead."""
        return LastChange(weights) if context.delay else None

    @override
    def weight_versions(self, context: StageContext) -> int:
        """The newest and one prediction, or with `stash` all that are waiting for a backward.

        Microbatches that meet the same version with as many updates ahead share one, so each of the updates ahead adds
        up to two: before and after the first microbatch of a minibatch.
        """
        if not self.stash or not context.delay:
            return 2 if context.delay else 1
        return context.delay * (1 if context.num_microbatches == 1 else 2) + 2
