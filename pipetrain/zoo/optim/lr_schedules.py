"""The learning-rate schedules to choose from. The tests compare each with torch's."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from typing_extensions import override

from pipetrain.engine.errors import ConfigError, check_whole, is_whole
from pipetrain.engine.number_range import NOT_NEGATIVE, POSITIVE, SHARE
from pipetrain.engine.optim.lr_schedule import LearningRateSchedule


@dataclass(frozen=True, kw_only=True)
class Constant(LearningRateSchedule):
    """The same rate throughout."""

    @override
    def at(self, position: int, total: int) -> float:
        return 1.0


@dataclass(frozen=True, kw_only=True)
class MultiStep(LearningRateSchedule):
    """The rate times `gamma` at each of `milestones`."""

    milestones: Sequence[int]
    gamma: float = 0.1

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        steps = self.milestones
        if not isinstance(steps, list | tuple) or not all(map(is_whole, steps)) or list(steps) != sorted(set(steps)):
            raise ConfigError(
                f"lr_schedule.milestones={steps}: must be a list of increasing {self.unit}s, such as [30, 60]"
            )
        POSITIVE.check("lr_schedule.gamma", self.gamma)

    @override
    def at(self, position: int, total: int) -> float:
        return self.gamma ** sum(milestone <= position for milestone in self.milestones)


@dataclass(frozen=True, kw_only=True)
class Step(LearningRateSchedule):
    """The rate times `gamma` every `size` units."""

    size: int
    gamma: float = 0.1

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("lr_schedule.size", self.size, least=1)
        POSITIVE.check("lr_schedule.gamma", self.gamma)

    @override
    def at(self, position: int, total: int) -> float:
        return self.gamma ** (position // self.size)


@dataclass(frozen=True, kw_only=True)
class Polynomial(LearningRateSchedule):
    """Decay to zero as (1 - position / total) ** power; 0 from `total` units on, by default the run's length."""

    power: float = 1.0
    total: int | None = None

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        NOT_NEGATIVE.check("lr_schedule.power", self.power)
        _check_total(self.total, self.unit)

    @override
    def at(self, position: int, total: int) -> float:
        length = self.total or total
        return float((1 - min(position, length) / length) ** self.power)


@dataclass(frozen=True, kw_only=True)
class Cosine(LearningRateSchedule):
    """Half a cosine from 1 to `minimum` over `total` units, by default the run's length (Loshchilov & Hutter 2017)."""

    minimum: float = 0.0
    total: int | None = None

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        SHARE.check("lr_schedule.minimum", self.minimum)
        _check_total(self.total, self.unit)

    @override
    def at(self, position: int, total: int) -> float:
        length = self.total or total
        return self.minimum + (1 - self.minimum) * (1 + math.cos(math.pi * min(position, length) / length)) / 2


@dataclass(frozen=True, kw_only=True)
class Inv(LearningRateSchedule):
    """Decay as (1 + gamma · position) ** -power, Caffe's `inv` policy: Zhang & Abdelrahman train LeNet-5 with it.

    The defaults are from Caffe's LeNet.
    """

    unit: str = "step"
    gamma: float = 1e-4
    power: float = 0.75

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        POSITIVE.check("lr_schedule.gamma", self.gamma)
        NOT_NEGATIVE.check("lr_schedule.power", self.power)

    @override
    def at(self, position: int, total: int) -> float:
        return float((1 + self.gamma * position) ** -self.power)


@dataclass(frozen=True, kw_only=True)
class InverseSqrt(LearningRateSchedule):
    """Linear warm-up, then decay as sqrt(warmup / position) (Vaswani et al. 2017, equation 3).

    `optimizer.lr` is the rate at the end of the warm-up, the highest of the run, as fairseq has it.
    """

    unit: str = "step"
    warmup: float = 4000

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        POSITIVE.check("lr_schedule.warmup", self.warmup, f"in {self.unit}s: the decay begins at its end")

    @override
    def check(self, steps_per_epoch: int, total_steps: int) -> None:
        """Accepts any length; short trials may end within the warm-up."""

    @override
    def at(self, position: int, total: int) -> float:
        whole = math.ceil(self.warmup)  # units, within which the rate is the same
        return math.sqrt(whole / max(whole, position + 1))


def _check_total(total: int | None, unit: str) -> None:
    if total is not None:
        check_whole("lr_schedule.total", total, least=1, otherwise=f"in {unit}s, or null for the whole run")
