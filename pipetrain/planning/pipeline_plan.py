"""A planned pipeline: its stages, the replicas of each, and what they take; the content of plan.json."""

from dataclasses import asdict, dataclass
from typing import Any, Self

from pipetrain.data.files.json_reader import from_json
from pipetrain.engine.errors import ConfigError, check_whole
from pipetrain.engine.schedules.placement import Placement


@dataclass(frozen=True)
class PlannedStage:
    """One stage.

    Attributes:
        layers: indices into the profile.
        replicas: number of devices that take minibatches in turn.
        time_s: seconds per minibatch, including the synchronization of replicas.
        memory_bytes: peak of one replica's device, with its other stages, if it has any.
        process: that has the stage, if some have several; None: each replica has its own.
    """

    layers: tuple[int, ...]
    replicas: int
    time_s: float
    memory_bytes: int
    process: int | None = None


@dataclass(frozen=True)
class PipelinePlan:
    """Stages in the order of the pipeline; the devices of each follow the previous stage's.

    Attributes:
        time_per_minibatch_s: of the slowest stage or link, in seconds; predicted if processes have several stages.
        single_device_time_s: of all layers on one device.
        data_parallel_time_s: of all layers on every device; None if it was not asked for.
        labels: of the profile's layers; they identify a plan made for another model.
    """

    stages: tuple[PlannedStage, ...]
    time_per_minibatch_s: float
    single_device_time_s: float
    data_parallel_time_s: float | None = None
    labels: tuple[str, ...] = ()

    @property
    def num_devices(self) -> int:
        """Number of devices of all stages."""
        if self.placement is not None:
            return self.placement.num_processes
        return sum(stage.replicas for stage in self.stages)

    @property
    def cut(self) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
        """The layers of each stage, and its replicas."""
        layers, replicas = zip(*((stage.layers, stage.replicas) for stage in self.stages), strict=True)
        return layers, replicas

    @property
    def memory_bytes(self) -> list[int]:
        """The peak of a device of each stage."""
        return [stage.memory_bytes for stage in self.stages]

    @property
    def placement(self) -> Placement | None:
        """The stages of each process, if some have several."""
        of = [stage.process for stage in self.stages]
        processes = sorted({p for p in of if p is not None})
        found = tuple(tuple(r for r, other in enumerate(of) if other == p) for p in processes)
        return Placement(found) if found else None

    @property
    def replicas(self) -> str:
        """The replicas of each stage as PipeDream prints them, such as 2-1-1."""
        return "-".join(str(stage.replicas) for stage in self.stages)

    @property
    def in_flight(self) -> int:
        """NOAM, the number of minibatches that keep every device busy (PipeDream § 3.2)."""
        return -(-self.num_devices // self.stages[0].replicas)

    def to_json(self) -> dict[str, Any]:
        """The content of plan.json."""
        return {
            "time_per_minibatch_s": self.time_per_minibatch_s,
            "single_device_time_s": self.single_device_time_s,
            "data_parallel_time_s": self.data_parallel_time_s,
            "replicas": self.replicas,
            "minibatches_in_flight": self.in_flight,
            "stages": [
                {name: value for name, value in asdict(stage).items() if value is not None} for stage in self.stages
            ],
            "labels": self.labels,
        }

    @classmethod
    def from_json(cls, content: Any) -> Self:
        """The plan of which a file holds `to_json`.

        Raises:
            ConfigError: something is missing, or of another type.
        """
        if not isinstance(content, dict) or not content.get("stages"):
            raise ConfigError("no plan of `pipetrain plan`: it has no stages")
        plan: Self = from_json(cls, content)
        for r, stage in enumerate(plan.stages):
            check_whole(f"stages.{r}.replicas", stage.replicas, least=1)
            if not stage.layers:
                raise ConfigError(f"stages.{r}.layers=[]: must be indices of layers")
        return plan
