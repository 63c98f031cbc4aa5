"""The pipeline whose fullest device is least full."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pipetrain.planner.bottleneck import Bottleneck
from pipetrain.planner.counted_bottleneck import CountedBottleneck
from pipetrain.planner.cut_states import CutStates, Table, Vector
from pipetrain.planner.memory import MemoryModel, StagePlace
from pipetrain.planner.memory_table import memory_table
from pipetrain.planner.row import Row, even_rows
from pipetrain.planner.topology import Device, Topology

_UNLIMITED = 1.0


@dataclass(frozen=True)
class LeastMemory:
    """A pipeline on all devices in their order, whatever their levels.

    Attributes:
        states: where the model may be cut.
        topology: the devices.
        memory: what a stage keeps.
        replicas: of each stage; None: any.
    """

    states: CutStates
    topology: Topology
    memory: MemoryModel
    replicas: tuple[int, ...] | None = None

    @cached_property
    def share(self) -> float:
        """What the fullest stage keeps, as a share of its smallest device; in bytes where memory is not limited."""
        if self.replicas is not None:
            return self._of_row(Row(self.topology, self.replicas))
        even = map(self._of_row, even_rows(self.topology, len(self.states) - 1))
        return min(self._of_any_depth() if self.memory.drains else self._of_any(), *even)

    def _of_row(self, row: Row) -> float:
        """That of stages with given replicas."""
        places = StagePlace.row(row.replicas)
        tables = [self._share(place, devices) for place, devices in zip(places, row.devices, strict=True)]
        return self._least(Bottleneck(lambda r: tables[r][np.newaxis], self._links(len(places))))

    def _of_any(self) -> float:
        """That of stages with any, of which the devices behind each say what it keeps."""
        return self._least(Bottleneck(lambda device: self._on(device, 0), self._links(self.topology.num_devices)))

    def _of_any_depth(self) -> float:
        """The same where it is the stages behind that say it."""
        every = CountedBottleneck(self._on, self._links(self.topology.num_devices)).costs(len(self.states) - 1)
        return min(float(table[0, 0]) for table in every)

    def _on(self, device: int, behind: int) -> Table:
        """The shares of stages that begin with a device, on one and more, and that at least so many stages follow."""
        most = self.topology.num_devices - device
        places = (StagePlace(device, behind, count, most - count) for count in range(1, most - behind + 1))
        return np.stack([self._share(each, self._devices(device, each.replicas)) for each in places])

    def _devices(self, first: int, count: int) -> list[Device]:
        return [self.topology.device(first + each) for each in range(count)]

    def _links(self, count: int) -> list[Vector]:
        return [np.zeros(len(self.states))] * count

    def _least(self, bottleneck: Bottleneck) -> float:
        return float(bottleneck.costs(len(self.states) - 1)[0, 0])

    def _share(self, place: StagePlace, devices: list[Device]) -> Table:
        room = min(each.memory_bytes or _UNLIMITED for each in devices)
        kept = memory_table(self.states, self.memory, place)
        share: Table = np.where(self.states.follows, kept / room, np.inf)
        return share
