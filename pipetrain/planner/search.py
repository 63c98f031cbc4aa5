"""PipeDream's search: the stages and replicas that make the slowest stage or link of a pipeline fast."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, prod
from typing import NamedTuple

import numpy as np

from pipetrain.planner.bottleneck import Bottleneck, Part
from pipetrain.planner.cut_states import CutStates, Table
from pipetrain.planner.found_stage import FoundStage
from pipetrain.planner.memory import MemoryModel, StagePlace
from pipetrain.planner.memory_table import memory_table
from pipetrain.planner.stage_costs import CostModel
from pipetrain.planner.topology import Device, Topology


class Place(NamedTuple):
    """Where a part of a pipeline is computed.

    Attributes:
        device: the first.
        copies: how many of it take minibatches in turn.
        after: the devices of the stages behind it.
        stages_after: how many stages these are, at most.
    """

    device: int = 0
    copies: int = 1
    after: int = 0
    stages_after: int = 0


@dataclass(frozen=True)
class Search:
    """The best pipeline on all devices, with as many replicas of each stage as are best.

    A level's members are the workers of a dynamic program (`Bottleneck`), whose stages cost what the level below says
    (PipeDream § 3.1). Under a memory limit a stage is taken to keep as much as in the deepest pipeline on its devices.

    Attributes:
        states: where the model may be cut.
        topology: the devices; with several levels they must be alike.
        costs: of replicas and links.
        memory: what a stage keeps; None: it fits whatever it keeps.
    """

    states: CutStates
    topology: Topology
    costs: CostModel
    memory: MemoryModel | None = None
    _tables: dict[tuple[int, Place], Table] = field(default_factory=dict, init=False, repr=False, compare=False)

    def time_s(self) -> float:
        """Seconds for each minibatch; infinite where no pipeline is possible."""
        return float(self._best[0, 0])

    def stages(self) -> Iterator[FoundStage]:
        """The stages of the best pipeline."""
        yield from self._expand(self._levels, 0, len(self.states) - 1, Place())

    @property
    def _levels(self) -> int:
        return len(self.topology.workers)

    @cached_property
    def _top(self) -> Bottleneck:
        return self._level(self._levels, Place())

    @cached_property
    def _best(self) -> Table:
        return self._top.costs(len(self.states) - 1)

    def _expand(
        self, level: int, first: int, last: int, place: Place, counts: tuple[int, ...] = ()
    ) -> Iterator[FoundStage]:
        """The stages between two states on a member of a level, of which there are `counts` on the levels above."""
        top = level == self._levels
        workers = self._top if top else self._level(level, place)
        for part in workers.parts(first, self._best if top else workers.costs(last)):
            inner, each = self._inner(level, place, part.worker, part.workers), (part.workers, *counts)
            if level == 1:
                time = float(self._compute(inner)[part.first, part.last])
                yield FoundStage(part.first, part.last, inner.copies, self._synchronized(time, part, each))
            else:
                yield from self._expand(level - 1, part.first, part.last, inner, each)

    def _synchronized(self, time: float, part: Part, counts: tuple[int, ...]) -> float:
        """The seconds of a stage whose replicas, so many on each level, exchange weights over its links."""
        weights = float(self.states.stage_weight_bytes[part.first, part.last])
        for count, bandwidth in zip(counts, self.topology.bytes_per_s, strict=False):
            time = self.costs.replicated(time, weights, count, bandwidth)
        return float(time)

    def _level(self, level: int, place: Place) -> Bottleneck:
        """The dynamic program of a level whose members are at `place`."""
        members, bandwidth = self.topology.workers[level - 1], self.topology.bytes_per_s[level - 1]
        links = [self.costs.link_s(self.states, bandwidth)] * members
        if self.memory is None and self.topology.uniform:
            shared = self._replicated(level, place, 0)
            return Bottleneck(lambda worker: shared[: members - worker], links)
        if level == self._levels:
            return Bottleneck(lambda worker: self._replicated(level, place, worker), links)
        each = [self._replicated(level, place, worker) for worker in range(members)]
        return Bottleneck(each.__getitem__, links)

    def _replicated(self, level: int, place: Place, worker: int) -> Table:
        """What stages cost that begin with a member, on one of them and more."""
        bandwidth = self.topology.bytes_per_s[level - 1]
        most = self.topology.workers[level - 1] - worker
        weights = self.states.stage_weight_bytes
        table = np.empty((most, len(self.states), len(self.states)))
        for count in range(1, most + 1):
            inner = self._inner(level, place, worker, count)
            table[count - 1] = self.costs.replicated(self._on_one(level, inner), weights, count, bandwidth)
        return table

    def _inner(self, level: int, place: Place, worker: int, count: int) -> Place:
        """The place of a part on `count` members from `worker` on."""
        size = prod(self.topology.workers[: level - 1])
        behind = (self.topology.workers[level - 1] - worker - count) * size
        return Place(
            device=place.device + worker * size,
            copies=place.copies * count,
            after=place.after + place.copies * behind,
            stages_after=place.stages_after + behind,
        )

    def _on_one(self, level: int, place: Place) -> Table:
        """What the layers between two states cost on one member of a level."""
        if level == 1:
            return self._compute(place)
        key = level, self._alike(place)
        if key not in self._tables:
            self._tables[key] = self._level(level - 1, self._alike(place)).table()
        return self._tables[key]

    def _alike(self, place: Place) -> Place:
        """One place for all at which stages keep as much in flight; many devices behind are rounded up."""
        if self.memory is None:
            return Place()
        return Place(
            after=_rounded_up((place.after - 1) // place.copies + 1) if self.memory.flows else 0,
            stages_after=_rounded_up(place.stages_after) if self.memory.drains else 0,
        )

    def _compute(self, place: Place) -> Table:
        """What stages cost that are computed on one device at a time; infinite where they do not fit."""
        devices = self._devices(place)
        time = self._seconds / min(device.speed for device in devices)
        limit = min(device.memory_bytes or inf for device in devices)
        if self.memory is None or limit == inf:
            return time
        before = place.device if self._levels == 1 else 0  # stages, at most
        stage = StagePlace(before, place.stages_after, place.copies, place.after)
        return np.where(memory_table(self.states, self.memory, stage) <= limit, time, inf)

    def _devices(self, place: Place) -> list[Device]:
        if self.topology.uniform or self._levels > 1:
            return [self.topology.device(0)]
        return [self.topology.device(place.device + each) for each in range(place.copies)]

    @cached_property
    def _seconds(self) -> Table:
        return self.states.between(self.states.compute_s, inf)


def _rounded_up(count: int) -> int:
    """The next number with no more than four significant binary digits; small ones as they are."""
    step = 1 << max(0, count.bit_length() - 4)
    return -(-count // step) * step
