"""A method outside the package, with a running statistic that the package does not know."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from typing_extensions import override

from pipetrain.engine.methods import Method
from pipetrain.engine.program.weight_reads import WeightRead, WeightTransform
from pipetrain.engine.schedules.base import Family
from pipetrain.engine.weights.statistic import WeightStatistic


class PolyakAverage(WeightStatistic):
    """The mean of all versions so far, and how many there were."""

    name: ClassVar[str] = "polyak"

    def __init__(self, weights):
        self.mean = {name: weight.clone() for name, weight in weights.items()}
        self.count = 1

    @override
    def follow(self, before, after):
        self.count += 1
        for name, mean in self.mean.items():
            mean.add_((after[name] - mean) / self.count)

    def state(self):
        # one tensor for each weight: the count stands behind the mean
        count = torch.tensor([float(self.count)])
        return {name: torch.cat([mean.flatten(), count]) for name, mean in self.mean.items()}

    def load_state(self, state):
        for name, mean in self.mean.items():
            mean.copy_(state[name][:-1].view_as(mean))
            self.count = int(state[name][-1])


@dataclass(frozen=True)
class Averaged(WeightTransform):
    """The mean of all versions in place of the newest."""

    def __str__(self):
        return "~"

    @override
    def apply(self, version, weights):
        return {name: mean.clone() for name, mean in weights.statistic.mean.items()}


class Polyak(Method):
    """F reads the mean of all versions so far, B the newest."""

    name, family = "polyak", Family.CONTINUOUS

    def forward(self, at):
        return WeightRead(at.newest, Averaged())

    @override
    def statistic(self, context, weights):
        return PolyakAverage(weights)

    @override
    def weight_versions(self, context):
        return 2
