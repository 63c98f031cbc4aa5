"""PipeMare: smaller steps where weights are stale (T1), and a backward that sees the forward's weights again (T2)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.methods._pipemare_delays import check_anneal_steps, forward_delay
from pipetrain.engine.methods.base import Method
from pipetrain.engine.program.weight_reads import ReadContext, StageContext, WeightRead, t1_lr_scale
from pipetrain.engine.schedules.base import Family
from pipetrain.engine.weights.statistic import UpdateAverage
from pipetrain.engine.weights.transforms import Corrected

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class PipeMare(Method):
    """F and B each read the weights that are newest when they run (PipeMare § 2), helped by two techniques.

    Attributes:
        t1: learning-rate rescheduling: at update k of the phase the rate is divided by τ^(1 - min(k/K, 1)).
        t2: discrepancy correction: B reads W_now - τ·δ, δ the decayed average of weight changes.
        anneal_steps: K of T1, in updates.
        decay: D of T2; δ decays by γ = D^(1/τ) at each update.
    """

    name: ClassVar[str] = "pipemare"
    family: ClassVar[Family] = Family.CONTINUOUS
    t1: bool = True
    t2: bool = True
    anneal_steps: int = 1000
    decay: float = 0.5

    def __post_init__(self) -> None:
        check_anneal_steps(self.anneal_steps)
        if not isinstance(self.decay, int | float) or not 0 < self.decay < 1:
            raise ConfigError(
                f"method.decay={self.decay}: must be between 0 and 1, such as 0.5 (CIFAR-10) or 0.1 (IWSLT-14)"
            )

    @override
    def backward(self, at: ReadContext, forward: WeightRead) -> WeightRead:
        return WeightRead(at.newest, Corrected(forward_delay(at.context)) if self.t2 else None)

    @override
    def recomputation(self, at: ReadContext, forward: WeightRead) -> WeightRead:
        """The newest weights; with T2, corrected for the updates between F and R (app. D)."""
        behind = forward_delay(at.context) - -(-at.lead // at.context.num_microbatches)
        return WeightRead(at.newest, Corrected(behind) if self.t2 and behind else None)

    @override
    def weight_versions(self, context: StageContext) -> int:
        return 2 if self.t2 else 1

    @override
    def learning_rate_scale(self, context: StageContext, update: int) -> float:
        return t1_lr_scale(forward_delay(context), update, self.anneal_steps) if self.t1 else 1.0

    @override
    def statistic(self, context: StageContext, weights: "Mapping[str, Tensor]") -> UpdateAverage | None:
        """δ of T2, with γ = D^(1/(τ_F - τ_B)), τ_B = 0 (§ 3.2)."""
        return UpdateAverage(self.decay ** (1.0 / forward_delay(context)), weights) if self.t2 else None
