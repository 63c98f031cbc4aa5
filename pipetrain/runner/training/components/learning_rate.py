"""The learning rate of each step and stage, and schedulers of torch.optim.lr_scheduler as functions of the step."""

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from typing_extensions import override

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.executors.pipeline_rules import Phase
from pipetrain.engine.failure import described
from pipetrain.engine.optim.lr_schedule import LearningRateSchedule
from pipetrain.runner.config.settings import Settings
from pipetrain.runner.training.timetable import Timetable


def build_rate(settings: Settings, timetable: Timetable) -> Callable[[int], float]:
    """The learning rate of each update."""
    base = settings.optimizer.lr
    if base is None:
        raise ConfigError("optimizer.lr=null: learning-rate schedules scale it; set a rate, such as optimizer.lr=0.01")
    target = settings.lr_schedule
    if scheduler := settings.torch_scheduler:
        ours = {name: target.options[name] for name in ("unit", "warmup") if name in target.options}
        schedule: LearningRateSchedule = TorchScheduler(make=scheduler.build, lr=base, name=target.setting, **ours)
    else:
        schedule = target.build()
    if not isinstance(schedule, LearningRateSchedule):
        raise target.wrong_type_error(
            schedule, "a pipetrain.LearningRateSchedule or a scheduler of torch.optim.lr_scheduler"
        )
    schedule.check(timetable.steps_per_epoch, timetable.total_steps)
    return lambda step: base * schedule.factor(step, timetable.steps_per_epoch, timetable.total_steps)


def rates_by_stage(base: Callable[[int], float], phases: Sequence[Phase]) -> Callable[[int], dict[str, float]]:
    """The rates of a step: `lr`, and `stageR_lr` for each stage if a method, replicas or delays scale them."""
    # rates that a method anneals are scaled at the start of its phase
    scaled = any(scale != 1 for phase in phases for scale in _rate_scales(phase, phase.start))

    def rates(step: int) -> dict[str, float]:
        rate = base(step)
        scales = _rate_scales(next(phase for phase in phases if step < phase.end), step) if scaled else []
        return {"lr": rate, **{f"stage{r}_lr": rate * scale for r, scale in enumerate(scales)}}

    return rates


def _rate_scales(phase: Phase, step: int) -> list[float]:
    method, contexts, k = phase.rules.method, phase.rules.contexts, step - phase.start
    return [method.learning_rate_scale(context, k) * context.rate_factor(k) for context in contexts]


@dataclass(frozen=True, kw_only=True)
class TorchScheduler(LearningRateSchedule):
    """The rates that a scheduler gives an optimizer of one number, to which it is applied once for every unit.

    Attributes:
        make: optimizer -> its scheduler.
        lr: `optimizer.lr`, from which the scheduler starts.
        name: of the scheduler, for messages.
    """

    make: Callable[[SGD], Any]
    lr: float
    name: str

    @override
    def check(self, steps_per_epoch: int, total_steps: int) -> None:
        super().check(steps_per_epoch, total_steps)
        units = math.ceil(total_steps / self._steps_per_unit(steps_per_epoch))
        rates, following = self._played
        try:
            while len(rates) < units:
                rates.append(following())
        except Exception as error:
            ends = f"ends before the run, which has {units} {self.unit}s"
            raise ConfigError(f"{self.name}: {ends}: {described(error)}") from error
        for unit, rate in enumerate(rates):
            if not 0 <= rate < math.inf:
                raise ConfigError(f"{self.name}: gives the rate {rate:g} in {self.unit} {unit}; must be at least 0")

    @override
    def at(self, position: int, total: int) -> float:
        rates, following = self._played
        with contextlib.suppress(Exception):  # of one at its end, whose last rate stays
            while len(rates) <= position:
                rates.append(following())
        return rates[min(position, len(rates) - 1)] / self.lr

    @cached_property
    def _played(self) -> tuple[list[float], Callable[[], float]]:
        """The rates of the scheduler so far, and a function that returns the one of the next unit."""
        optimizer = SGD([nn.Parameter(torch.zeros(1))], lr=self.lr)
        scheduler = self.make(optimizer)
        if isinstance(scheduler, ReduceLROnPlateau):
            raise ConfigError(f"{self.name}: waits for the loss of an evaluation; rates must depend only on the step")
        if not isinstance(scheduler, LRScheduler):
            raise ConfigError(f"{self.name}: returned {type(scheduler).__name__}, not a scheduler of torch")
        if getattr(scheduler, "cycle_momentum", False):
            raise ConfigError(
                f"{self.name}: also changes the momentum, which is not scheduled; add +lr_schedule.cycle_momentum=false"
            )
        optimizer.step()  # torch warns where none comes before the scheduler's

        def following() -> float:
            scheduler.step()
            return _rate(optimizer)

        return [_rate(optimizer)], following


def _rate(optimizer: SGD) -> float:
    return float(optimizer.param_groups[0]["lr"])
