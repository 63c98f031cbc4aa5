"""The search for replicas in pipelines that drain, where it depends on the stages behind what a stage keeps."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from math import inf

import numpy as np

from pipetrain.planner.bottleneck import EQUAL, Part
from pipetrain.planner.counted_bottleneck import CountedBottleneck
from pipetrain.planner.cut_states import CutStates, Table
from pipetrain.planner.found_stage import FoundStage, preference
from pipetrain.planner.memory import MemoryModel, StagePlace
from pipetrain.planner.memory_table import memory_table
from pipetrain.planner.stage_costs import CostModel
from pipetrain.planner.topology import Topology


@dataclass(frozen=True)
class DepthSearch:
    """The best pipeline on all devices of one level, of those of each depth.

    Attributes:
        states: where the model may be cut.
        topology: the devices.
        costs: of replicas and links.
        memory: what a stage keeps.
    """

    states: CutStates
    topology: Topology
    costs: CostModel
    memory: MemoryModel
    _kept: dict[StagePlace, Table] = field(default_factory=dict, init=False, repr=False, compare=False)
    _newest: dict[int, Table] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Of devices that are alike: stages behind -> the costs from the first device on, for what was asked last."""

    def time_s(self) -> float:
        """Seconds for each minibatch; infinite where no pipeline fits."""
        return min(float(table[0, 0]) for table in self._best)

    def stages(self) -> Iterator[FoundStage]:
        """The stages of the best pipeline."""
        most = self.time_s() * (1 + EQUAL)
        depths = [depth for depth, table in enumerate(self._best, 1) if table[0, 0] <= most]
        yield from min(map(self._of_depth, depths), key=preference)

    def _of_depth(self, depth: int) -> list[FoundStage]:
        parts = self._bottleneck.parts(0, self._best[:depth])
        return [
            FoundStage(part.first, part.last, part.workers, self._time_s(part, depth - 1 - r))
            for r, part in enumerate(parts)
        ]

    def _time_s(self, part: Part, behind: int) -> float:
        return float(self._costs(part.worker, behind)[part.workers - 1, part.first, part.last])

    @cached_property
    def _best(self) -> list[Table]:
        return self._bottleneck.costs(len(self.states) - 1)

    @cached_property
    def _bottleneck(self) -> CountedBottleneck:
        link = self.costs.link_s(self.states, self.topology.bytes_per_s[0])
        return CountedBottleneck(self._costs, [link] * self.topology.num_devices)

    def _costs(self, device: int, behind: int) -> Table:
        """What stages cost that begin with a device, on one and more, and that so many stages follow."""
        most = self.topology.num_devices - device - behind
        if self.memory.flows or not self.topology.uniform:
            return self._stacked(device, behind, most)
        if behind not in self._newest:
            self._newest.clear()
            self._newest[behind] = self._stacked(0, behind, self.topology.num_devices - behind)
        return self._newest[behind][:most]

    def _stacked(self, device: int, behind: int, most: int) -> Table:
        """The same, on up to so many devices."""
        return np.stack([self._on(device, count, behind) for count in range(1, most + 1)])

    def _on(self, device: int, count: int, behind: int) -> Table:
        """The same on just so many; infinite where they do not fit."""
        devices = [self.topology.device(device + each) for each in range(count)]
        place = StagePlace(device, behind, count, self.topology.num_devices - device - count)
        fits = self._bytes(place) <= min(each.memory_bytes or inf for each in devices)
        time = np.where(fits, self._seconds / min(each.speed for each in devices), inf)
        return self.costs.replicated(time, self.states.stage_weight_bytes, count, self.topology.bytes_per_s[0])

    def _bytes(self, place: StagePlace) -> Table:
        """What stages keep there; where all phases drain, only those behind count."""
        key = place if self.memory.flows else StagePlace(0, place.behind)
        if key not in self._kept:
            self._kept[key] = memory_table(self.states, self.memory, key)
        return self._kept[key]

    @cached_property
    def _seconds(self) -> Table:
        return self.states.between(self.states.compute_s, inf)
