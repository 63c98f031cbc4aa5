"""Schedulers of torch.optim.lr_scheduler as pure functions of the step."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from typing_extensions import override

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.failure import described
from pipetrain.engine.optim.lr_schedule import LearningRateSchedule


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
        self.at(units - 1, units)
        if failure := self._played.failure:
            raise ConfigError(f"{self.name}: ends before the run, which has {units} {self.unit}s: {described(failure)}")
        for unit, rate in enumerate(self._played.rates):
            if not 0 <= rate < math.inf:
                raise ConfigError(f"{self.name}: gives the rate {rate:g} in {self.unit} {unit}; must be at least 0")

    @override
    def at(self, position: int, total: int) -> float:
        return self._played.rate(position) / self.lr

    @cached_property
    def _played(self) -> "_Played":
        optimizer = SGD([nn.Parameter(torch.zeros(1))], lr=self.lr)
        scheduler = self.make(optimizer)
        if isinstance(scheduler, ReduceLROnPlateau):
            raise ConfigError(f"{self.name}: waits for the loss of an evaluation; rates must depend only on the step")
        if not isinstance(scheduler, LRScheduler):
            raise ConfigError(f"{self.name}: returned {type(scheduler).__name__}, not a scheduler of torch")
        if getattr(scheduler, "cycle_momentum", False):
            raise ConfigError(
                f"{self.name}: would change the momentum, too, which is not scheduled; add "
                "+lr_schedule.cycle_momentum=false"
            )
        return _Played(optimizer, scheduler)


class _Played:
    """The rates of a scheduler so far; after its end, if it has one, the last rate."""

    def __init__(self, optimizer: SGD, scheduler: LRScheduler) -> None:
        self.rates = [_rate(optimizer)]
        self.failure: Exception | None = None
        self._optimizer, self._scheduler = optimizer, scheduler
        optimizer.step()  # torch warns where none comes before the scheduler's

    def rate(self, position: int) -> float:
        """Learning rate at a unit, counted from 0."""
        while len(self.rates) <= position and self.failure is None:
            try:
                self._scheduler.step()
            except Exception as error:
                self.failure = error
            else:
                self.rates.append(_rate(self._optimizer))
        return self.rates[min(position, len(self.rates) - 1)]


def _rate(optimizer: SGD) -> float:
    return float(optimizer.param_groups[0]["lr"])
