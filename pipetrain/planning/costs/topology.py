"""The devices that a pipeline is planned for: how many, how connected, and what each of them can do."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from math import inf, prod
from typing import Any, Self

from pipetrain.engine.errors import ConfigError, check_whole
from pipetrain.engine.number_range import POSITIVE
from pipetrain.engine.schedules.placement import Placement
from pipetrain.planning.profile.profile import Profile
from pipetrain.runner.config.schema import TopologyConfig
from pipetrain.runner.config.settings import Settings

_GIGA = 1e9
_FEW = 2
"""Number of devices if the settings give none."""


@dataclass(frozen=True)
class Device:
    """One device: its speed relative to the profiled one, and its memory, None if that is not limited."""

    speed: float = 1.0
    memory_bytes: float | None = None


@dataclass(frozen=True)
class Topology:
    """Devices in levels (PipeDream § 3.1, fig. 7).

    Attributes:
        workers: number of members of each level, innermost first: (8, 2) are two machines of eight devices.
        bytes_per_s: of each level, between two of its members.
        devices: all of them, in order; () if all equal the profiled one.
        cores: that the workers of one innermost level share; None: each worker has its own device.
    """

    workers: tuple[int, ...]
    bytes_per_s: tuple[float, ...]
    devices: tuple[Device, ...] = ()
    cores: int | None = None

    @classmethod
    def of(cls, settings: TopologyConfig, measured: float | None = None) -> Self:
        """The topology of the section `topology`; `measured` are the bytes/s between two workers, None if unknown.

        Raises:
            ConfigError: a number is out of range, or two of them contradict each other.
        """
        workers = _workers(settings)
        bandwidths = _bandwidths(settings, workers, measured)
        return cls(workers, bandwidths, _devices(settings, prod(workers)), settings.cores)

    @property
    def num_devices(self) -> int:
        """Number of devices: the product of the levels."""
        return prod(self.workers)

    @property
    def uniform(self) -> bool:
        """True if all devices are alike."""
        return len(set(self.devices)) <= 1

    def device(self, index: int) -> Device:
        """The device of that index."""
        return self.devices[index] if self.devices else Device()

    def bandwidth_between(self, device_a: int, device_b: int) -> float:
        """Bytes/s of the lowest level that both devices are in."""
        for members, bandwidth in zip(self.workers, self.bytes_per_s, strict=True):
            device_a, device_b = device_a // members, device_b // members
            if device_a == device_b:
                return bandwidth
        raise IndexError(f"of {self.num_devices} devices")


@dataclass(frozen=True)
class DeviceRow:
    """Stages on the devices of a topology, in order; it has at least as many devices as there are replicas.

    Attributes:
        placement: the stages of each device, if some have several, and so no replicas.
    """

    topology: Topology
    replicas: tuple[int, ...]
    placement: Placement | None = None

    @cached_property
    def bounds(self) -> list[tuple[int, int]]:
        """(first device, the one after the last) of each stage."""
        if self.placement is not None:
            processes = map(self.placement.process_of, range(len(self.replicas)))
            return [(process, process + 1) for process in processes]
        return list(pairwise(accumulate(self.replicas, initial=0)))

    @property
    def is_closed(self) -> bool:
        """True if the first and the last stage are on one device."""
        return self.bounds[0] == self.bounds[-1]

    @cached_property
    def devices(self) -> list[list[Device]]:
        """Devices of each stage."""
        return [[self.topology.device(each) for each in range(*bounds)] for bounds in self.bounds]

    @cached_property
    def memory_bytes(self) -> list[float]:
        """Memory of the smallest device of each stage; infinite if it is not limited."""
        return [min(device.memory_bytes or inf for device in devices) for devices in self.devices]

    def fits(self, memory_bytes: Sequence[float]) -> bool:
        """True if a device of each stage can hold so much."""
        return all(size <= room for size, room in zip(memory_bytes, self.memory_bytes, strict=True))

    @cached_property
    def link_bytes_per_s(self) -> list[float]:
        """Bytes/s of the link after each stage but the last, between the devices farthest from each other.

        Infinite between two stages of one device.
        """
        ends = pairwise(self.bounds)
        return [
            inf if (first, last) == (begin, end) else self.topology.bandwidth_between(first, end - 1)
            for (first, last), (begin, end) in ends
        ]


def _workers(settings: TopologyConfig) -> tuple[int, ...]:
    workers, devices = settings.workers, settings.devices
    if workers is None:
        return (devices or _FEW,)
    if not workers:
        raise ConfigError("topology.workers=[]: must have at least one level, such as [4]")
    for each in workers:
        check_whole("topology.workers", each, least=1)
    if devices is not None and prod(workers) != devices:
        raise ConfigError(
            f"topology.workers={workers}: {prod(workers)} devices, and topology.devices={devices}; leave one out"
        )
    return tuple(workers)


def _bandwidths(settings: TopologyConfig, workers: tuple[int, ...], measured: float | None) -> tuple[float, ...]:
    given = settings.gigabytes_per_s
    if given is None:
        if measured is None:
            works = f"a number for each level, such as {[1.25] * len(workers)}"
            raise ConfigError(f"topology.gigabytes_per_s=null: the profile has no measured bandwidth; {works}")
        return (measured,) * len(workers)
    for each in given:
        POSITIVE.check("topology.gigabytes_per_s", each)
    if len(given) != len(workers):
        raise ConfigError(
            f"topology.gigabytes_per_s={given}: must have {len(workers)} numbers, one for each level of "
            f"topology.workers={list(workers)}, innermost first"
        )
    return tuple(each * _GIGA for each in given)


def _devices(settings: TopologyConfig, count: int) -> tuple[Device, ...]:
    speeds = _of_each("topology.speeds", settings.speeds, count) or [1.0] * count
    memory = _of_each("topology.memory_gigabytes", settings.memory_gigabytes, count)
    limits = [None] * count if memory is None else [each * _GIGA for each in memory]
    devices = tuple(map(Device, speeds, limits))
    return () if set(devices) == {Device()} else devices


def _of_each(setting: str, given: Any, count: int) -> list[float] | None:
    """A number for each device; a single one is for all."""
    if given is None:
        return None
    numbers = given if isinstance(given, list) else [given] * count
    for each in numbers:
        POSITIVE.check(setting, each)
    if len(numbers) != count:
        raise ConfigError(f"{setting}={given}: {len(numbers)} numbers for {count} devices; must have one for each")
    return [float(each) for each in numbers]


def check_parts(replicas: Sequence[int], parts: int) -> None:
    """Checks that there are no more stages than parts into which the model can be cut.

    Raises:
        ConfigError: there are.
    """
    if len(replicas) > parts:
        raise ConfigError(
            f"partition.replicas={list(replicas)}: {len(replicas)} stages, and the model has {parts} parts that can be "
            f"cut apart; at most {parts} stages"
        )


def topology_of(settings: Settings, profile: Profile, devices: int | None = None) -> Topology:
    """The devices of the section `topology`, with the bandwidth and the cores that the profile measured.

    They are processes that share the cores of a profiled CPU, unless the section describes other machines.

    Args:
        settings: of a run.
        profile: of the model.
        devices: their number, if the section gives none; None: as `Topology.of`.

    Raises:
        ConfigError: see `Topology.of`.
    """
    given = settings.topology
    if devices is not None and given.devices is None and given.workers is None:
        given = replace(given, devices=devices)
    described = any(each is not None for each in (given.workers, given.gigabytes_per_s, given.speeds, given.cores))
    if not described and settings.planner.cost_model != "pipedream_paper":
        given = replace(given, cores=profile.cores)
    return Topology.of(given, profile.bytes_per_s)


def core_notes(
    settings: Settings, profile: Profile, topology: Topology, devices: int, otherwise: int | None = None
) -> list[str]:
    """Notes on the assumption made for processes that outnumber a CPU's cores, and the setting that changes it.

    Args:
        settings: of a run.
        profile: of the model.
        topology: assumed.
        devices: number of processes.
        otherwise: number of cores if the profile names none.
    """
    cores, threads = profile.cores or otherwise, profile.threads
    chosen = settings.topology.cores is not None or settings.planner.cost_model == "pipedream_paper"
    if cores is None or devices * threads <= cores or chosen:
        return []
    shared = f"{cores} core{'s' if cores > 1 else ''}"
    if topology.cores is None:
        return [
            f"assumed: each of {devices} devices computes by itself; topology.cores={cores} lets them share {shared}"
        ]
    processes = f"{devices} processes" + (f" of {threads} threads each" if threads > 1 else "")
    return [f"assumed: {processes} share {shared}; topology.cores={devices * threads} gives each its own"]
