"""The search for fast pipelines whose devices have several stages each, as their schedule places them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from math import inf

from pipetrain.engine.executors.pipeline_rules import PipelineRules
from pipetrain.engine.methods.naive_async import NaiveAsync
from pipetrain.engine.methods.synchronous import Synchronous
from pipetrain.engine.models.cuts import balanced_cuts
from pipetrain.engine.program.pipeline_graph import SteadyPipeline
from pipetrain.engine.program.steady_state import steady_state
from pipetrain.engine.schedules import ListSchedule, Placement
from pipetrain.planning.costs.cut_profile import CutProfile
from pipetrain.planning.costs.memory import MemoryModel
from pipetrain.planning.costs.prediction import stage_times
from pipetrain.planning.costs.topology import DeviceRow, Topology
from pipetrain.planning.profile.profile import Profile
from pipetrain.runner.partition.process_cuts import cheapest_cuts, nearby_cuts, placed_cost

_MOST_PERIODS = 300
"""Cuts whose period is predicted, which takes some seconds."""


@dataclass(frozen=True)
class PlacedSearch:
    """Cuts of a chain with which a pipeline is fast.

    First the slowest device and link count, then the predicted period, which neighboring cuts may shorten: an order of
    operations that is made for equal stages waits if they differ.

    Attributes:
        starts: where the chain may be cut, 0 first.
        placement: the stages of each device.
    """

    profile: Profile
    starts: Sequence[int]
    placement: Placement
    topology: Topology
    memory: MemoryModel

    def best(self) -> CutProfile:
        """The stages; of those that exceed some device's memory least if none fit."""
        stages = max(map(max, self.placement.stages_of)) + 1
        seconds = [layer.compute_s for layer in self.profile.layers]
        allowed = set(self.starts)
        glued = [(i - 1, i) for i in range(1, len(seconds)) if i not in allowed]
        balanced = cheapest_cuts(self.starts, balanced_cuts([seconds] * stages, glued), self._cost)
        return self._cut(nearby_cuts(self.starts, balanced, self._by_period, _MOST_PERIODS))

    def period(self, cut: CutProfile) -> float:
        """Predicted seconds from one minibatch to the next, in the slowest phase.

        Those of the slowest device or link if the schedule of a phase has no lists.
        """
        if not all(isinstance(each.schedule, ListSchedule) for each in self.memory.phases):
            cores_s = cut.cores_s(self.memory.microbatches)
            return max(max(self.placement.sums(stage_seconds(cut))), *link_seconds(cut), cores_s)
        periods = []
        for rules in self._rules:
            N, D = rules.num_microbatches, rules.num_stages
            times = stage_times(cut, N, [0.0] * D, split=rules.schedule.splits_backward)
            cycles = [rules.steady_cycle(r) for r in range(D)]
            pipeline = SteadyPipeline(cycles, times, cut.replicas, [0.0] * D, orders=rules.steady_orders())
            periods.append(steady_state(pipeline, cut.shared_cores).period)
        return max(periods)

    @cached_property
    def _rules(self) -> list[PipelineRules]:
        """Of each phase, by any method: none changes when operations run."""
        D = sum(map(len, self.placement.stages_of))
        schedules = [(each.schedule, each.microbatches) for each in self.memory.phases]
        return [PipelineRules(s, Synchronous() if s.synchronous else NaiveAsync(), D, N) for s, N in schedules]

    def _by_period(self, cuts: Sequence[int]) -> tuple[float, ...]:
        cut = self._cut(cuts)
        return self.excess(cut), self.period(cut)

    def excess(self, cut: CutProfile) -> float:
        """Share of its memory by which the fullest device exceeds it; 0 if all stages fit."""
        rooms = cut.row.memory_bytes
        if min(rooms) == inf:
            return 0.0
        peaks = self.memory.pipeline_bytes(cut.replicas, cut.stage_sizes, self.placement)
        return max(0.0, *(peak / room - 1 for peak, room in zip(peaks, rooms, strict=True)))

    def _cut(self, cuts: Sequence[int]) -> CutProfile:
        bounds = pairwise([0, *cuts, len(self.profile.layers)])
        stages = tuple(tuple(range(*each)) for each in bounds)
        return CutProfile(self.profile, stages, (1,) * len(stages), self.topology, self.placement)

    def _cost(self, cuts: Sequence[int]) -> tuple[float, ...]:
        speeds = [device.speed for (device,) in self._row.devices]
        bounds = zip([0, *cuts], [*cuts, len(self.profile.layers)], speeds, strict=True)
        seconds = [(self._sums[last] - self._sums[first]) / speed for first, last, speed in bounds]
        links = zip(cuts, self._row.link_bytes_per_s, strict=True)
        sent = []
        for r, (cut, speed) in enumerate(links):
            layer = self.profile.layers[cut - 1]
            sent.append(layer.link_bytes / speed)
            if self.profile.encodes and speed < inf:
                seconds[r] += layer.sender_s / speeds[r]
                seconds[r + 1] += layer.receiver_s / speeds[r + 1]
        excess = 0.0 if min(self._row.memory_bytes) == inf else self.excess(self._cut(cuts))
        return excess, max(placed_cost(self.placement, seconds), *sent)

    @cached_property
    def _row(self) -> DeviceRow:
        return DeviceRow(self.topology, (1,) * sum(map(len, self.placement.stages_of)), self.placement)

    @cached_property
    def _sums(self) -> list[float]:
        """Seconds of the layers before each one, and of the data that the first and the last stage read."""
        reading = self.profile.reading.together if self._row.is_closed else self.profile.reading
        sums = [0.0, *accumulate(layer.compute_s for layer in self.profile.layers)]
        return [0.0, *(each + reading.inputs_s for each in sums[1:-1]), sums[-1] + reading.inputs_s + reading.targets_s]


def stage_seconds(cut: CutProfile) -> list[float]:
    """Seconds in which a device computes each stage for a minibatch, reads its data, and encodes its messages."""
    return [sum(each) for each in zip(cut.forward_s, cut.backward_s, cut.reading_s, *cut.encoding_s, strict=True)]


def link_seconds(cut: CutProfile) -> list[float]:
    """Seconds in which the activations of a minibatch and their gradients pass each link."""
    links = zip(*cut.link_bytes, cut.row.link_bytes_per_s, strict=True)
    return [(forward + back) / speed for forward, back, speed in links]
