"""A learning-rate schedule: a pure function of the step, so that any stage knows the rate of any of its updates.

torch's own schedulers advance a hidden counter; a prediction needs the rate of the *next* update, and a resumed run
the rate at an arbitrary step.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.number_range import NOT_NEGATIVE

UNITS = ("epoch", "step")


@dataclass(frozen=True, kw_only=True)
class LearningRateSchedule(ABC):
    """The factor on `optimizer.lr` at each update.

    Attributes:
        unit: what positions and `warmup` count, `epoch` (whole epochs, as in torch's schedulers) or `step`.
        warmup: length of the linear warm-up; its k-th update of W uses (k + 1) / W of the scheduled rate.
    """

    unit: str = "epoch"
    warmup: float = 0

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise ConfigError(f"lr_schedule.unit={self.unit}: must be one of {', '.join(UNITS)}")
        NOT_NEGATIVE.check("lr_schedule.warmup", self.warmup, f"in {self.unit}s; 0 for none")

    def check(self, steps_per_epoch: int, total_steps: int) -> None:
        """Checks that depend on the length of the run.

        Raises:
            ConfigError: the warm-up is longer than the run.
        """
        if self.warmup * self._steps_per_unit(steps_per_epoch) > total_steps:
            raise ConfigError(
                f"lr_schedule.warmup={self.warmup}: longer than the run, which ends at step {total_steps}; "
                f"lr_schedule.unit={self.unit}, and an epoch has {steps_per_epoch} steps"
            )

    def _steps_per_unit(self, steps_per_epoch: int) -> int:
        return steps_per_epoch if self.unit == "epoch" else 1

    def factor(self, step: int, steps_per_epoch: int, total_steps: int) -> float:
        """The factor of update `step` (from 0) of `total_steps`."""
        per_unit = self._steps_per_unit(steps_per_epoch)
        warm = self.warmup * per_unit
        ramp = min(1.0, (step + 1) / warm) if warm else 1.0
        return ramp * self.at(step // per_unit, math.ceil(total_steps / per_unit))

    @abstractmethod
    def at(self, position: int, total: int) -> float:
        """The factor without warm-up at `position` units of a run of `total`."""
