"""The search for the fastest pipeline, or the one that needs least memory, on devices in a row."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from math import inf

import numpy as np

from pipetrain.planning.costs.memory import MemoryModel, StagePlace, StageSizes
from pipetrain.planning.costs.stage_costs import CostModel
from pipetrain.planning.costs.topology import DeviceRow, Topology
from pipetrain.planning.profile.antichains import AntichainStates, Table, Vector
from pipetrain.planning.search.bottleneck import EQUAL, BottleneckDP, StageCandidate, preference


def memory_table(states: AntichainStates, memory: MemoryModel, place: StagePlace) -> Table:
    """Peak bytes of a stage between two states, as [first state, last state]."""
    inputs, entering, gradients = (
        np.where(states.follows, sizes[:, np.newaxis], 0.0)
        for sizes in (states.input_bytes, states.entering_bytes, states.sent_bytes)
    )
    outputs = np.where(states.follows, states.sent_bytes[np.newaxis, :], 0.0)
    activations = states.between(states.activation_bytes) + entering
    weights = states.stage_weight_bytes, states.stage_trainable_bytes, states.stage_state_bytes
    put_aside = states.between(states.put_aside_bytes)
    read_ahead = np.zeros_like(put_aside)
    read_ahead[0] += states.profile.input_bytes
    read_ahead[:, -1] += states.profile.target_bytes
    sizes = StageSizes(*weights, activations, entering, inputs, outputs, gradients, put_aside, read_ahead)
    return memory.stage_bytes(place, sizes)


def even_rows(devices: int, most: int) -> Iterator[tuple[int, ...]]:
    """The replicas of every pipeline on all devices with at most `most` stages, all with equally many replicas."""
    return ((devices // count,) * count for count in range(1, min(devices, most) + 1) if devices % count == 0)


@dataclass(frozen=True)
class FlatSearch:
    """The best pipeline on all devices: the one whose largest cost of a stage or link is smallest.

    With a cost model costs are seconds of a minibatch, infinite if a stage does not fit. Without one, they are the
    share of its smallest device's memory that a stage keeps; bytes if memory is not limited.

    Under a memory limit, the memory of a stage depends on the stages after it in a pipeline that drains, otherwise on
    the devices after it. With equal numbers of replicas fewer microbatches may be in flight than with different ones:
    these pipelines are searched separately.

    Attributes:
        states: possible cuts of the model.
        memory: of a stage; None: every stage fits.
        model: of the seconds of replicas and links.
        replicas: of each stage; None: any.
    """

    states: AntichainStates
    topology: Topology
    memory: MemoryModel | None
    model: CostModel | None = None
    replicas: tuple[int, ...] | None = None
    _bytes_at: dict[StagePlace, Table] = field(default_factory=dict, init=False, repr=False, compare=False)
    _newest: dict[int, Table] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Stages behind -> the costs from the first device on, the last that were needed, for devices that are alike."""

    def least(self) -> float:
        """Cost of the best pipeline; infinite if none is possible."""
        return min(program.least(0, self._last) for program, _ in self._programs)

    def stages(self) -> list[StageCandidate]:
        """The stages of the best pipeline, the preferred one of equals."""
        most = self.least() * (1 + EQUAL)
        best = []
        for program, row in self._programs:
            if program.least(0, self._last) <= most:
                parts = program.parts(0, self._last)
                if row is not None:  # its workers are stages
                    placed = zip(parts, row.bounds, strict=True)
                    parts = [part._replace(worker=a, replicas=b - a) for part, (a, b) in placed]
                best.append(parts)
        return min(best, key=preference)

    @property
    def _last(self) -> int:
        return len(self.states) - 1

    @cached_property
    def _programs(self) -> list[tuple[BottleneckDP, DeviceRow | None]]:
        """Dynamic programs over devices, or, with fixed replicas on a row of devices, over stages."""
        memory, topology = self.memory, self.topology
        if self.replicas is not None:
            return [self._fixed(DeviceRow(topology, self.replicas))]
        devices = topology.num_devices
        links = [self._link(topology.bytes_per_s[0])] * devices
        if memory is None:
            return [(BottleneckDP(self._on, links), None)]
        free = BottleneckDP(self._on, links, by_depth=memory.drains)
        rows = (DeviceRow(topology, counts) for counts in even_rows(devices, self._last))
        return [(free, None), *map(self._fixed, rows)]

    def _fixed(self, row: DeviceRow) -> tuple[BottleneckDP, DeviceRow]:
        places = list(zip(StagePlace.row(row.replicas), (first for first, _ in row.bounds), strict=True))
        before_first: Vector = np.zeros(len(self.states))
        links = {bandwidth: self._link(bandwidth) for bandwidth in row.link_bytes_per_s}
        cuts = [before_first, *(links[bandwidth] for bandwidth in row.link_bytes_per_s)]
        return BottleneckDP(lambda r, _: self._stage(*places[r])[np.newaxis], cuts), row

    def _on(self, device: int, behind: int) -> Table:
        """Costs of stages that begin with a device, on one and more, and that at least `behind` stages follow."""
        devices = self.topology.num_devices
        if not self.topology.uniform or (self.memory is not None and self.memory.flows):
            return self._stacked(device, behind)
        if behind not in self._newest:
            self._newest.clear()
            self._newest[behind] = self._stacked(0, behind)
        return self._newest[behind][: devices - device - behind]

    def _stacked(self, device: int, behind: int) -> Table:
        memory, states = self.memory, len(self.states)
        after = self.topology.num_devices - device
        r = device if memory is not None and memory.flows else 1  # any that is not the first sends gradients back
        table = np.empty((after - behind, states, states))
        for count in range(1, after - behind + 1):
            table[count - 1] = self._stage(StagePlace(r, behind, count, after - count), device)
        return table

    def _stage(self, place: StagePlace, first: int) -> Table:
        """Costs of a stage between two states on `place.replicas` devices from the first on; infinite if impossible."""
        devices = [self.topology.device(first + each) for each in range(place.replicas)]
        limit = min(device.memory_bytes or inf for device in devices)
        if self.model is None:
            assert self.memory is not None
            room = min(device.memory_bytes or 1.0 for device in devices)
            return np.where(self.states.follows, self._bytes(self.memory, place) / room, inf)
        time = self.states.stage_seconds / min(device.speed for device in devices)
        if self.memory is not None and limit < inf:
            time = np.where(self._bytes(self.memory, place) <= limit, time, inf)
        bandwidth = self.topology.bandwidth_between(first, first + place.replicas - 1)
        return self.model.replicated(time, self.states.stage_trainable_bytes, place.replicas, bandwidth)

    def _link(self, bytes_per_s: float) -> Vector:
        """Costs of a link, by the state at which it cuts."""
        return np.zeros(len(self.states)) if self.model is None else self.model.link_s(self.states, bytes_per_s)

    def _bytes(self, memory: MemoryModel, place: StagePlace) -> Table:
        """Bytes of a stage; if all phases drain, few numbers of replicas matter, and the last table serves for many."""
        if memory.flows:
            return memory_table(self.states, memory, place)
        peers, shares = place.sharing
        key = StagePlace(place.r, place.behind, shares, before=peers)
        if key not in self._bytes_at:
            self._bytes_at.clear()
            self._bytes_at[key] = memory_table(self.states, memory, key)
        return self._bytes_at[key]
