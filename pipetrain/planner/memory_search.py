"""The pipeline whose fullest device is least full."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pipetrain.planner.bottleneck import Bottleneck, Table
from pipetrain.planner.cut_states import CutStates
from pipetrain.planner.memory import MemoryModel
from pipetrain.planner.search import Place, memory_table
from pipetrain.planner.topology import Topology

_UNLIMITED = 1.0


@dataclass(frozen=True)
class LeastMemory:
    """A pipeline on all devices in their order, whatever their levels.

    Attributes:
        states: where the model may be cut.
        topology: the devices.
        memory: what a stage keeps.
        straight: whether no stage is replicated. A replica keeps as much as its stage would alone, but for fewer
            minibatches.
    """

    states: CutStates
    topology: Topology
    memory: MemoryModel
    straight: bool = True

    @cached_property
    def share(self) -> float:
        """Of its device's memory what the fullest stage keeps, or bytes where memory is not limited."""
        devices = self.topology.num_devices
        links = [np.zeros(len(self.states))] * devices
        return float(Bottleneck(self._stages, links).costs(len(self.states) - 1)[0, 0])

    def _stages(self, device: int) -> Table:
        """What stages keep that begin with a device, as a share of the smallest that they are on."""
        devices = self.topology.num_devices
        most = 1 if self.straight else devices - device
        tables = []
        for copies in range(1, most + 1):
            kept = memory_table(self.states, self.memory, device, Place(device, copies, devices - device - copies))
            room = min(self.topology.device(device + i).memory_bytes or _UNLIMITED for i in range(copies))
            tables.append(np.where(self.states.follows, kept / room, np.inf))
        return np.stack(tables)
