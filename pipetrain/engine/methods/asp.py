"""Asynchronous data parallelism: a parameter owner applies each gradient when it arrives, with no barrier."""

from dataclasses import dataclass
from typing import Any, ClassVar

from typing_extensions import override

from pipetrain.engine.errors import ConfigError, as_configured
from pipetrain.engine.methods.base import Method
from pipetrain.engine.program.weight_reads import ReadContext, StageContext, WeightRead
from pipetrain.engine.schedules.base import Family
from pipetrain.engine.seeding import key

_PURPOSE = 0x617370  # keeps these draws apart from others that are keyed by the same numbers


@dataclass(frozen=True)
class ASP(Method):
    """F and B read the weights as their replica last fetched them (PipeDream § 2.1, 5.2).

    A replica fetches the newest weights when its gradient has been applied, and begins its next minibatch. Which one
    comes next is drawn uniformly, as if all took exponential times; minibatches are counted as they arrive. After a
    drain all have the same weights. So a gradient is late by the updates that other replicas have made since: R - 1
    on average.

    Attributes:
        replicas: R, as a list of one number.
        seed: seed of the order in which gradients arrive.
    """

    name: ClassVar[str] = "asp"
    family: ClassVar[Family] = Family.SYNCHRONOUS
    simulated_only: ClassVar[bool] = True
    replicas: Any = None  # whatever the configuration holds
    seed: int = 0

    @property
    @override
    def independent_replicas(self) -> int:
        return int(self.replicas[0]) if isinstance(self.replicas, list | tuple) else 1

    def replica(self, minibatch_of_run: int) -> int:
        """The replica whose gradient arrives as the gradient of a minibatch."""
        return key(self.seed, minibatch_of_run, _PURPOSE) % self.independent_replicas

    @override
    def forward(self, at: ReadContext) -> WeightRead:
        """The version after the last update that this replica's own gradient made; after a drain the first."""
        t, start = at.operation.minibatch, at.minibatch_of_run - at.operation.minibatch
        own = self.replica(start + t)
        return WeightRead(next((s + 1 for s in reversed(range(t)) if self.replica(start + s) == own), 0))

    @override
    def backward(self, at: ReadContext, forward: WeightRead) -> WeightRead:
        return forward

    @override
    def weight_versions(self, context: StageContext) -> int:
        """One version per replica, plus the newest one in the first round after a drain."""
        return self.independent_replicas + 1

    @override
    def check(self, num_stages: int, num_microbatches: int) -> None:
        if not isinstance(self.replicas, list | tuple) or len(self.replicas) != 1:
            raise ConfigError(
                f"partition.replicas={as_configured(self.replicas)}: method=asp trains replicas of the whole model; "
                "partition.stages=1 partition.replicas=[4] works"
            )
