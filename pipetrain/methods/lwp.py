"""Linear weight prediction: F reads where the last change of the weights leads (Kosson et al. 2021)."""

from typing import ClassVar

from pipetrain.methods.base import Method
from pipetrain.program.weight_reads import Moment, StageContext, WeightRead
from pipetrain.schedules.base import Family
from pipetrain.weights.transforms import Corrected


class LinearWeightPrediction(Method):
    """F reads W_t + s · (W_t - W_{t-1}), s the updates until its own B; B reads the newest (their LWPw).

    Needs nothing of the optimizer: the difference is that of two versions.
    """

    name: ClassVar[str] = "lwp"
    family: ClassVar[Family] = Family.CONTINUOUS

    def forward(self, moment: Moment) -> WeightRead:
        """The prediction, which lives only during F."""
        steps = moment.updates_until_backward
        return WeightRead(moment.newest, Corrected(-steps) if steps else None)

    def drift_decay(self, context: StageContext) -> float | None:
        """0: of the running average of weight changes only the last change is left."""
        return 0.0

    def weight_versions(self, context: StageContext) -> int:
        """The newest, and the prediction where there is one."""
        return 2 if context.delay else 1
