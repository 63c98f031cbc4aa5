"""One microbatch at a time: plain training on one stage, naive model parallelism on several."""

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.schedules.alternation import DrainedOneFOneB


@dataclass(frozen=True)
class Sequential(DrainedOneFOneB):
    """F(t,j) B(t,j) for each j, then U(t): one stage works at a time."""

    name: ClassVar[str] = "sequential"

    @override
    def in_flight(self, r: int, D: int, N: int) -> int:
        return 1


@dataclass(frozen=True)
class DataParallel(Sequential):
    """The whole model on every replica, each with its own minibatch in every round."""

    name: ClassVar[str] = "data_parallel"

    @override
    def check(self, D: int, N: int) -> None:
        if D != 1:
            raise ConfigError(
                f"partition.stages={D}: schedule=data_parallel has the whole model in one stage; partition.stages=1 "
                "partition.replicas=[4] works, and schedule=gpipe takes several stages with replicas"
            )
