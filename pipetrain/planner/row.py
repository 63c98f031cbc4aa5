"""Stages with given replicas, on the devices of a topology in their order."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

from pipetrain.planner.topology import Device, Topology


@dataclass(frozen=True)
class Row:
    """So many stages, each on so many devices.

    Attributes:
        topology: the devices, at least as many as there are replicas.
        replicas: of each stage.
    """

    topology: Topology
    replicas: tuple[int, ...]

    @cached_property
    def bounds(self) -> list[tuple[int, int]]:
        """Of each stage its first device, and the first of the next."""
        return list(pairwise(accumulate(self.replicas, initial=0)))

    @cached_property
    def devices(self) -> list[list[Device]]:
        """Those of each stage."""
        return [[self.topology.device(each) for each in range(*bounds)] for bounds in self.bounds]

    def bytes_per_s(self, r: int) -> float:
        """Between the replicas of a stage that are farthest from each other."""
        first, end = self.bounds[r]
        return self.topology.bandwidth_between(first, end - 1)

    @cached_property
    def link_bytes_per_s(self) -> list[float]:
        """Of the link behind each stage but the last, between the devices farthest from each other."""
        ends = pairwise(self.bounds)
        return [self.topology.bandwidth_between(first, end - 1) for (first, _), (_, end) in ends]


def even_rows(topology: Topology, most: int) -> Iterator[Row]:
    """Those of at most so many stages on all devices in which all stages have as many replicas."""
    devices = topology.num_devices
    for stages in range(1, min(devices, most) + 1):
        if devices % stages == 0:
            yield Row(topology, (devices // stages,) * stages)
