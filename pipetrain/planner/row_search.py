"""The search for the cuts of a pipeline whose replicas are given: its stages lie on the devices in their order."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy as np

from pipetrain.planner.bottleneck import Bottleneck
from pipetrain.planner.cut_states import CutStates, Table, Vector
from pipetrain.planner.found_stage import FoundStage
from pipetrain.planner.memory import MemoryModel, StagePlace
from pipetrain.planner.memory_table import memory_table
from pipetrain.planner.row import Row
from pipetrain.planner.stage_costs import CostModel


@dataclass(frozen=True)
class RowSearch:
    """The best cuts of a row, by a dynamic program whose workers are the stages (`Bottleneck`).

    Attributes:
        states: where the model may be cut.
        row: the stages.
        costs: of replicas and links.
        memory: what a stage keeps; None: it fits whatever it keeps.
    """

    states: CutStates
    row: Row
    costs: CostModel
    memory: MemoryModel | None = None

    def time_s(self) -> float:
        """Seconds for each minibatch; infinite where the model cannot be cut so often, or no cuts fit."""
        return float(self._best[0, 0])

    def stages(self) -> Iterator[FoundStage]:
        """The stages of the best cuts."""
        for part in self._stages.parts(0, self._best):
            time = float(self.stage_costs(part.worker)[0, part.first, part.last])
            yield FoundStage(part.first, part.last, self.row.replicas[part.worker], time)

    @cached_property
    def _stages(self) -> Bottleneck:
        by_bandwidth = {each: self.costs.link_s(self.states, each) for each in set(self.row.link_bytes_per_s)}
        none: list[Vector] = [np.zeros(len(self.states))]
        return Bottleneck(self.stage_costs, none + [by_bandwidth[each] for each in self.row.link_bytes_per_s])

    @cached_property
    def _best(self) -> Table:
        return self._stages.costs(len(self.states) - 1)

    def stage_costs(self, r: int) -> Table:
        """At [0, first state, last state], what the layers between cost as stage r; infinite where they do not fit."""
        devices, count = self.row.devices[r], self.row.replicas[r]
        time = self._seconds / min(device.speed for device in devices)
        if count > 1:
            time = self.costs.replicated(time, self.states.stage_weight_bytes, count, self.row.bytes_per_s(r))
        limit = min(device.memory_bytes or inf for device in devices)
        if self.memory is not None and limit < inf:
            time = np.where(memory_table(self.states, self.memory, self._places[r]) <= limit, time, inf)
        return time[np.newaxis]

    @cached_property
    def _places(self) -> Sequence[StagePlace]:
        return StagePlace.row(self.row.replicas)

    @cached_property
    def _seconds(self) -> Table:
        return self.states.between(self.states.compute_s, inf)
