"""Optimizer-dependent weight prediction: F reads the weights that its own B will find (PipeOptim § III, eq. 4)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.methods.base import Method
from pipetrain.engine.program.weight_reads import ReadContext, StageContext, WeightRead
from pipetrain.engine.schedules.base import Family
from pipetrain.engine.weights.transforms import PREDICTIONS, predicted

if TYPE_CHECKING:
    from torch.optim import Optimizer


@dataclass(frozen=True)
class PipeOptim(Method):
    """F reads W_now - s · lr · Δ, s the updates until its own B; B reads the newest. The last stage predicts none.

    Attributes:
        prediction: form of the prediction; `Predicted` explains them.
    """

    name: ClassVar[str] = "pipeoptim"
    family: ClassVar[Family] = Family.CONTINUOUS
    needs_prediction: ClassVar[bool] = True
    prediction: str = "constant"

    def __post_init__(self) -> None:
        if self.prediction not in PREDICTIONS:
            raise ConfigError(f"method.prediction={self.prediction}: must be one of {', '.join(PREDICTIONS)}")

    @override
    def forward(self, at: ReadContext) -> WeightRead:
        return WeightRead(at.newest, predicted(at.updates_until_backward, self.prediction))

    @override
    def weight_versions(self, context: StageContext) -> int:
        return 2 if context.delay else 1

    @override
    def check_optimizer(self, optimizer: "Optimizer") -> None:
        from pipetrain.engine.optim.prediction import check_decaying, delta_rule  # which imports torch

        (check_decaying if self.prediction == "decaying" else delta_rule)(optimizer)
