"""The pipeline whose fullest device is least full."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pipetrain.planner.bottleneck import Bottleneck
from pipetrain.planner.cut_states import CutStates, Table
from pipetrain.planner.memory import MemoryModel, StagePlace
from pipetrain.planner.memory_table import memory_table
from pipetrain.planner.row import Row
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
        """Of its device's memory what the fullest stage keeps, or bytes where memory is not limited."""
        stages = self._of_any if self.replicas is None else self._of_row
        count = self.topology.num_devices if self.replicas is None else len(self.replicas)
        links = [np.zeros(len(self.states))] * count
        return float(Bottleneck(stages, links).costs(len(self.states) - 1)[0, 0])

    def _of_row(self, r: int) -> Table:
        """What stages keep as the r-th, as a share of the smallest device that they are on."""
        assert self.replicas is not None
        devices = Row(self.topology, self.replicas).devices[r]
        return self._share(StagePlace.row(self.replicas)[r], devices)[np.newaxis]

    def _of_any(self, device: int) -> Table:
        """The same of those that begin with a device, on one and more."""
        count = self.topology.num_devices
        tables = []
        for copies in range(1, count - device + 1):
            behind = count - device - copies
            place = StagePlace(device, behind, copies, behind)
            tables.append(self._share(place, [self.topology.device(device + i) for i in range(copies)]))
        return np.stack(tables)

    def _share(self, place: StagePlace, devices: list[Device]) -> Table:
        room = min(each.memory_bytes or _UNLIMITED for each in devices)
        kept = memory_table(self.states, self.memory, place)
        share: Table = np.where(self.states.follows, kept / room, np.inf)
        return share
