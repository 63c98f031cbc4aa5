"""Optimizer-dependent weight prediction: F reads the weights that its own B will find (PipeOptim § III, eq. 4)."""

from typing import ClassVar

from torch.optim import Optimizer

from pipetrain.methods.base import Method
from pipetrain.optim.stage_optimizer import delta_rule
from pipetrain.program.weight_reads import Moment, StageContext, WeightRead
from pipetrain.schedules.base import Family
from pipetrain.weights.transforms import predicted


class PipeOptim(Method):
    """F reads W_now - s · lr · Δ, s the updates until its own B; B reads the newest. The last stage predicts none."""

    name: ClassVar[str] = "pipeoptim"
    family: ClassVar[Family] = Family.CONTINUOUS

    def forward(self, moment: Moment) -> WeightRead:
        """The prediction, which lives only during F."""
        return WeightRead(moment.newest, predicted(moment.updates_until_backward))

    def weight_versions(self, context: StageContext) -> int:
        """The newest, and the prediction where there is one."""
        return 2 if context.delay else 1

    def check_optimizer(self, optimizer: Optimizer) -> None:
        """The optimizer must have a prediction rule."""
        delta_rule(optimizer)
