"""The devices that settings describe, and the replicas that they ask for of each stage."""

from collections.abc import Sequence
from dataclasses import replace

from pipetrain.config.schema import TopologyConfig
from pipetrain.config.settings import Settings
from pipetrain.errors import ConfigError
from pipetrain.planner.profile import Profile
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


def with_cores(settings: Settings, profile: Profile) -> TopologyConfig:
    """The section `topology`; where it describes no devices, they are processes that share the cores of the profile."""
    given = settings.topology
    described = any(each is not None for each in (given.devices, given.workers, given.gigabytes_per_s, given.speeds))
    if described or given.cores is not None or settings.planner.cost_model == "pipedream_paper":
        return given
    return replace(given, cores=profile.cores)


def core_notes(settings: Settings, profile: Profile, devices: int) -> list[str]:
    """What is assumed of the cores of a CPU that are fewer than its processes take, and what assumes otherwise."""
    cores, threads = profile.cores, profile.threads
    told = settings.topology.cores is not None or settings.planner.cost_model == "pipedream_paper"
    if cores is None or devices * threads <= cores or told:
        return []
    shared = f"{cores} core{'s' if cores > 1 else ''}"
    if with_cores(settings, profile).cores is None:
        return [
            f"assumed: each of {devices} devices computes by itself; topology.cores={cores} lets them share {shared}"
        ]
    processes = f"{devices} processes" + (f" of {threads} threads each" if threads > 1 else "")
    return [f"assumed: {processes} share {shared}; topology.devices={devices} gives each a device of its own"]


def topology_of(settings: Settings, profile: Profile) -> Topology:
    """The devices of the section `topology`, or where it names none, one for each of partition.replicas.

    Args:
        settings: of a run.
        profile: what is planned for, with the bandwidth and the cores that were measured.

    Raises:
        ConfigError: they are not as many as the replicas, or a number is wrong.
    """
    given, replicas, measured = with_cores(settings, profile), settings.replicas.counts, profile.bytes_per_s
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
