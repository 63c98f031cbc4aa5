"""A planned pipeline: its stages, the replicas of each, and what they take; the content of plan.json."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from pipetrain.errors import ConfigError, is_whole
from pipetrain.number_range import NOT_NEGATIVE

_TIMES = ("time_per_minibatch_s", "single_device_time_s", "data_parallel_time_s")


@dataclass(frozen=True)
class PlannedStage:
    """One stage.

    Attributes:
        layers: indices into the profile.
        replicas: number of devices that take minibatches in turn.
        time_s: seconds per minibatch, including the synchronization of replicas.
        memory_bytes: peak of one replica.
    """

    layers: tuple[int, ...]
    replicas: int
    time_s: float
    memory_bytes: int


@dataclass(frozen=True)
class PipelinePlan:
    """Stages in the order of the pipeline; the devices of each follow those of the previous stage.

    Attributes:
        time_per_minibatch_s: of the slowest stage or link, in seconds.
        single_device_time_s: of all layers on one device.
        data_parallel_time_s: of all layers on every device.
        labels: of the profile's layers; they identify a plan made for another model.
    """

    stages: tuple[PlannedStage, ...]
    time_per_minibatch_s: float
    single_device_time_s: float
    data_parallel_time_s: float
    labels: tuple[str, ...] = ()

    @property
    def num_devices(self) -> int:
        """Number of devices of all stages."""
        return sum(stage.replicas for stage in self.stages)

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
            **{name: getattr(self, name) for name in _TIMES},
            "replicas": self.replicas,
            "minibatches_in_flight": self.in_flight,
            "stages": [{**asdict(stage), "layers": list(stage.layers)} for stage in self.stages],
            "labels": list(self.labels),
        }

    @classmethod
    def from_json(cls, content: Any) -> Self:
        """The plan of which a file holds `to_json`.

        Raises:
            ConfigError: something is missing, or is no number.
        """
        if not isinstance(content, dict) or not isinstance(content.get("stages"), list) or not content["stages"]:
            raise ConfigError("no plan of `pipetrain plan`: it has no stages")
        stages = tuple(_stage(r, values) for r, values in enumerate(content["stages"]))
        times = {name: _amount(content, name, "the plan") for name in _TIMES}
        labels = content.get("labels", [])
        if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
            raise ConfigError(f"labels={labels}: a list of the names of layers is needed")
        return cls(stages, **times, labels=tuple(labels))


def _stage(r: int, values: Any) -> PlannedStage:
    layers = values.get("layers") if isinstance(values, dict) else None
    if not isinstance(layers, list) or not layers or not all(is_whole(layer) and layer >= 0 for layer in layers):
        raise ConfigError(f"stage {r} has layers={layers}: indices of layers are needed")
    replicas = values.get("replicas")
    if not is_whole(replicas) or replicas < 1:
        raise ConfigError(f"stage {r} has replicas={replicas}: a whole number of at least 1 is needed")
    memory = _amount(values, "memory_bytes", f"stage {r}")
    return PlannedStage(tuple(layers), replicas, _amount(values, "time_s", f"stage {r}"), round(memory))


def _amount(values: Mapping[str, Any], name: str, where: str) -> float:
    if (value := values.get(name)) not in NOT_NEGATIVE:
        raise ConfigError(f"{where} has {name}={value}: {NOT_NEGATIVE} is needed")
    return float(values[name])
