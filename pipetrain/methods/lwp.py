"""Linear weight prediction: F extrapolates the last update of the weights (Kosson et al. 2021)."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from pipetrain.methods.base import Method
from pipetrain.program.weight_reads import ReadContext, StageContext, WeightRead
from pipetrain.schedules.base import Family
from pipetrain.weights.statistic import UpdateAverage
from pipetrain.weights.transforms import Corrected

if TYPE_CHECKING:
    from torch import Tensor


class LinearWeightPrediction(Method):
    """F reads W_t + s · (W_t - W_{t-1}), s the updates until its own B; B reads the newest (their LWPw)."""

    name: ClassVar[str] = "lwp"
    family: ClassVar[Family] = Family.CONTINUOUS

    @override
    def forward(self, at: ReadContext) -> WeightRead:
        steps = at.updates_until_backward
        return WeightRead(at.newest, Corrected(-steps) if steps else None)

    @override
    def statistic(self, context: StageContext, weights: "Mapping[str, Tensor]") -> UpdateAverage:
        """The last update of the weights: a running average with decay 0."""
        return UpdateAverage(0.0, weights)

    @override
    def weight_versions(self, context: StageContext) -> int:
        return 2 if context.delay else 1
