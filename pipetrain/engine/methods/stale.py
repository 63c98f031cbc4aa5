"""Stale weights as they are, with a learning rate for each stage (Zhang & Abdelrahman)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from pipetrain.engine.errors import ConfigError, as_configured
from pipetrain.engine.methods.base import Method
from pipetrain.engine.number_range import POSITIVE
from pipetrain.engine.program.weight_reads import StageContext
from pipetrain.engine.schedules.base import Family


@dataclass(frozen=True)
class Stale(Method):
    """Reads the newest weights in F and in B, like `naive_async`, and scales the learning rate of each stage.

    Attributes:
        stage_lr_scale: factor of each stage's learning rate (their table 8); None for 1.
    """

    name: ClassVar[str] = "stale"
    family: ClassVar[Family] = Family.CONTINUOUS
    stage_lr_scale: Sequence[float] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.stage_lr_scale, list | tuple | None):
            raise ConfigError(
                f"method.stage_lr_scale={as_configured(self.stage_lr_scale)}: must be a list with one factor per "
                "stage, such as [0.5, 1.0]"
            )
        for scale in self.stage_lr_scale or []:
            POSITIVE.check("method.stage_lr_scale", scale)

    @override
    def learning_rate_scale(self, context: StageContext, update: int) -> float:
        return 1.0 if self.stage_lr_scale is None else float(self.stage_lr_scale[context.stage])

    @override
    def check(self, num_stages: int, num_microbatches: int) -> None:
        if self.stage_lr_scale is not None and len(self.stage_lr_scale) != num_stages:
            raise ConfigError(
                f"method.stage_lr_scale={list(self.stage_lr_scale)} has {len(self.stage_lr_scale)} scales for "
                f"{num_stages} stages; give one for each"
            )
