"""The devices that settings describe, and the replicas that they ask for of each stage."""

from collections.abc import Sequence
from dataclasses import replace

from pipetrain.config.settings import Settings
from pipetrain.errors import ConfigError
from pipetrain.planner.topology import Topology


def replicas_of(settings: Settings, devices: int, layers: int) -> tuple[int, ...] | None:
    """The replicas that each stage must have; None: any.

    Args:
        settings: of a run.
        devices: that are planned for.
        layers: of the model.

    Raises:
        ConfigError: the model has too few layers for so many stages.
    """
    given = settings.replicas.counts
    if given is not None:
        check_parts(given, layers)
        return given
    if not settings.planner.straight and settings.planner.objective != "memory":
        return None
    if devices > layers:
        asked = "planner.straight=true" if settings.planner.straight else "planner.objective=memory"
        raise ConfigError(
            f"{asked} with {devices} devices: a straight pipeline has at most one for each layer, and the model has "
            f"{layers}; fewer devices work"
        )
    return (1,) * devices


def check_parts(replicas: Sequence[int], parts: int) -> None:
    """Checks the replicas of each stage against the number of parts that the model can be cut into.

    Raises:
        ConfigError: they are of more stages.
    """
    if len(replicas) > parts:
        raise ConfigError(
            f"partition.replicas={list(replicas)}: {len(replicas)} stages, and the model has {parts} parts that can be "
            f"cut apart; at most {parts} stages"
        )


def topology_of(settings: Settings, measured: float | None = None) -> Topology:
    """The devices of the section `topology`, or where it names none, one for each of partition.replicas.

    Args:
        settings: of a run.
        measured: bytes/s between two workers by the profile; None: unknown.

    Raises:
        ConfigError: they are not as many as the replicas, or a number is wrong.
    """
    given, replicas = settings.topology, settings.replicas.counts
    if replicas is None:
        return Topology.of(given, measured)
    if settings.planner.straight and max(replicas) > 1:
        raise ConfigError(
            f"planner.straight=true with partition.replicas={list(replicas)}: straight pipelines have no replicas; "
            "leave one of the two out"
        )
    if given.devices is None and given.workers is None:
        given = replace(given, devices=sum(replicas))
    topology = Topology.of(given, measured)
    if topology.num_devices != sum(replicas):
        raise ConfigError(
            f"partition.replicas={list(replicas)}: they take {sum(replicas)} devices, and `topology` has "
            f"{topology.num_devices}; leave topology.devices and topology.workers out, or give as many"
        )
    return topology
