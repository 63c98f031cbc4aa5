"""PipeDream's search on several levels of devices: stages and replicas of which the slowest is fast."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, prod

import numpy as np

from pipetrain.planning.costs.memory import MemoryModel, StagePlace
from pipetrain.planning.costs.stage_costs import CostModel
from pipetrain.planning.costs.topology import Topology
from pipetrain.planning.profile.antichains import AntichainStates, Table
from pipetrain.planning.search.bottleneck import BottleneckDP, StageCandidate
from pipetrain.planning.search.flat import memory_table

_WHOLE = StagePlace(0, 0)
"""Place of the whole pipeline."""


@dataclass(frozen=True)
class HierarchicalSearch:
    """The best pipeline on all devices, with the best number of replicas of each stage.

    A level's members are the workers of a dynamic program (`BottleneckDP`); the level below gives the costs of its
    stages (PipeDream § 3.1). Under a memory limit a stage counts as in the deepest pipeline on its devices: as many
    stages are before its place, and behind it, as there can be.

    Attributes:
        states: possible cuts of the model.
        topology: the devices, which are alike.
        memory: of a stage; None: every stage fits.
    """

    states: AntichainStates
    topology: Topology
    costs: CostModel
    memory: MemoryModel | None = None
    _tables: dict[tuple[int, StagePlace], Table] = field(default_factory=dict, init=False, repr=False, compare=False)

    def least(self) -> float:
        """Seconds for each minibatch; infinite if no pipeline is possible."""
        return self._top.least(0, len(self.states) - 1)

    def stages(self) -> list[StageCandidate]:
        """The stages of the best pipeline."""
        return list(self._expand(len(self.topology.workers), 0, len(self.states) - 1, _WHOLE))

    @cached_property
    def _counts_before(self) -> bool:
        return self.memory is not None and self.memory.depends_on_stages_before(self.topology.num_devices)

    @cached_property
    def _top(self) -> BottleneckDP:
        return self._level(len(self.topology.workers), _WHOLE)

    def _expand(
        self, level: int, first: int, last: int, place: StagePlace, counts: tuple[int, ...] = ()
    ) -> Iterator[StageCandidate]:
        """The stages between two states on the first member of a level; `counts` are the replicas on levels above."""
        workers = self._top if level == len(self.topology.workers) else self._level(level, place)
        for part in workers.parts(first, last):
            inner, each = self._inner(level, place, part.worker, part.replicas), (part.replicas, *counts)
            if level == 1:
                time = float(self._compute(inner)[part.first, part.last])
                weights = float(self.states.stage_trainable_bytes[part.first, part.last])
                for count, bandwidth in zip(each, self.topology.bytes_per_s, strict=False):
                    time = float(self.costs.replicated(time, weights, count, bandwidth))
                stages = iter([StageCandidate(part.first, part.last, 0, inner.replicas, time)])
            else:
                stages = self._expand(level - 1, part.first, part.last, inner, each)
            first_device = part.worker * prod(self.topology.workers[: level - 1])
            yield from (stage._replace(worker=first_device + stage.worker) for stage in stages)

    def _level(self, level: int, place: StagePlace) -> BottleneckDP:
        """The dynamic program of a level whose members are at `place`."""
        members, bandwidth = self.topology.workers[level - 1], self.topology.bytes_per_s[level - 1]
        links = [self.costs.link_s(self.states, bandwidth)] * members
        if self.memory is None:
            shared = self._replicated(level, place, 0)
            return BottleneckDP(lambda worker, _: shared[: members - worker], links)
        if level == len(self.topology.workers):
            return BottleneckDP(lambda worker, _: self._replicated(level, place, worker), links)
        each = [self._replicated(level, place, worker) for worker in range(members)]
        return BottleneckDP(lambda worker, _: each[worker], links)

    def _replicated(self, level: int, place: StagePlace, worker: int) -> Table:
        """Cost of stages that begin with a member, by the number of members."""
        bandwidth = self.topology.bytes_per_s[level - 1]
        most = self.topology.workers[level - 1] - worker
        weights = self.states.stage_trainable_bytes
        table = np.empty((most, len(self.states), len(self.states)))
        for count in range(1, most + 1):
            inner = self._inner(level, place, worker, count)
            table[count - 1] = self.costs.replicated(self._on_one(level, inner), weights, count, bandwidth)
        return table

    def _inner(self, level: int, place: StagePlace, worker: int, count: int) -> StagePlace:
        """The place of a part on `count` members from `worker` on."""
        size = prod(self.topology.workers[: level - 1])
        behind = (self.topology.workers[level - 1] - worker - count) * size
        workers_behind = place.workers_behind + place.replicas * behind
        before = place.r + worker * size if self._counts_before else 1  # all but the first send gradients back
        return StagePlace(before, place.behind + behind, place.replicas * count, workers_behind)

    def _on_one(self, level: int, place: StagePlace) -> Table:
        """Cost of the layers between two states on one member of a level."""
        if level == 1:
            return self._compute(place)
        key = level, self._alike(place)
        if key not in self._tables:
            self._tables[key] = self._level(level - 1, self._alike(place)).table()
        return self._tables[key]

    def _alike(self, place: StagePlace) -> StagePlace:
        """Common key of all places whose stages keep equally much in flight, with large device counts rounded."""
        if self.memory is None:
            return _WHOLE
        return StagePlace(
            _rounded_up(place.r),
            behind=_rounded_up(place.behind) if self.memory.drains else 0,
            workers_behind=_rounded_up((place.workers_behind - 1) // place.replicas + 1) if self.memory.flows else 0,
        )

    def _compute(self, place: StagePlace) -> Table:
        """Cost of stages computed on one device at a time; inf if a stage does not fit."""
        device = self.topology.device(0)
        time = self.states.stage_seconds / device.speed
        if self.memory is None or device.memory_bytes is None:
            return time
        return np.where(memory_table(self.states, self.memory, place) <= device.memory_bytes, time, inf)


def _rounded_up(count: int) -> int:
    """The next number with no more than four significant binary digits; small ones as they are."""
    step = 1 << max(0, count.bit_length() - 4)
    return -(-count // step) * step
