"""Momentum-based weight prediction for F and for B: SpecTrain (Chen et al.; PipeOptim § II)."""

from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.methods.base import Method
from pipetrain.engine.program.weight_reads import ReadContext, StageContext, WeightRead
from pipetrain.engine.schedules.base import Family
from pipetrain.engine.weights.transforms import predicted

if TYPE_CHECKING:
    from torch.optim import Optimizer


class SpecTrain(Method):
    """F reads W_now - s_F · lr · v, B W_now - s_B · lr · v: both aim at the moment the minibatch leaves the pipeline.

    v is SGD's momentum buffer, s_B = floor(r/2), and s_F = s_B + the updates between F and B.
    """

    name: ClassVar[str] = "spectrain"
    family: ClassVar[Family] = Family.CONTINUOUS
    needs_prediction: ClassVar[bool] = True

    @property
    @override
    def needs_even_replicas(self) -> bool:
        return True

    @override
    def forward(self, at: ReadContext) -> WeightRead:
        return WeightRead(at.newest, predicted(at.context.stage // 2 + at.updates_until_backward))

    @override
    def backward(self, at: ReadContext, forward: WeightRead) -> WeightRead:
        return WeightRead(at.newest, predicted(at.context.stage // 2))

    @override
    def weight_versions(self, context: StageContext) -> int:
        """The newest, and a prediction where F or B reads one: on the last stage, too, from the third stage on."""
        return 2 if context.delay or context.stage // 2 else 1

    @override
    def check_optimizer(self, optimizer: "Optimizer") -> None:
        from torch.optim import SGD

        from pipetrain.engine.optim.prediction import known_rule  # which imports torch

        for settings in optimizer.param_groups:
            if type(optimizer) is SGD and settings["momentum"] and not (settings["nesterov"] or settings["maximize"]):
                continue
            extra = "".join(f", {flag}=true" for flag in ("nesterov", "maximize") if settings.get(flag))
            kind = f"{type(optimizer).__name__} (momentum={settings.get('momentum', 'none')}{extra})"
            some = "" if settings is optimizer.param_groups[0] else " of some parameters"
            other = "method=lwp, which predicts with any optimizer"
            if known_rule(optimizer) is not None:
                other = "method=pipeoptim, which predicts with this one"
            raise ConfigError(
                f"method=spectrain predicts with the momentum buffer of plain SGD, and the optimizer{some} is {kind}; "
                f"use optimizer=sgdm, or {other}"
            )
