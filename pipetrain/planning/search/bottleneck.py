"""Dynamic programs that minimize the largest cost in a sequence of stages, vectorized over states."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import NamedTuple

import numpy as np

from pipetrain.planning.profile.antichains import Table, Vector

_BLOCK = 1 << 15
"""Elements per block, sized to the CPU cache."""
EQUAL = 1e-12
"""Relative difference below which two costs are equal except for rounding."""


class StageCandidate(NamedTuple):
    """A stage between two states on `replicas` workers, the first of which is `worker`."""

    first: int
    last: int
    worker: int
    replicas: int
    cost: float


def preference(parts: Sequence[StageCandidate]) -> list[tuple[int, int]]:
    """Tie-break: more workers first, then fewer layers, stage by stage."""
    return [(-part.replicas, part.last) for part in parts]


@dataclass(frozen=True)
class BottleneckDP:
    """The best sequence of stages on all workers of a row.

    Attributes:
        stages: (worker, number of stages that follow) -> costs of the stages that begin with the worker, infinite if
            impossible, as [count - 1, first state, last state].
        links: for each worker, the cost of a cut between its predecessor and it, by state.
        by_depth: True if the costs depend on how many stages follow, which is then one more index; otherwise `stages`
            is called with 0.
    """

    stages: Callable[[int, int], Table]
    links: Sequence[Vector]
    by_depth: bool = False
    _costs_to: dict[int, list[Table]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def least(self, first: int, last: int) -> float:
        """Minimal bottleneck cost of stages between two states."""
        return min(float(table[0, first]) for table in self._costs(last))

    def table(self) -> Table:
        """At [first state, last state], the minimal bottleneck cost of stages between the two; not by depth."""
        costs: Table = self._costs_of_any_depth(range(len(self.links[0])))[0]
        return costs.T

    def parts(self, first: int, last: int) -> list[StageCandidate]:
        """The stages of a best sequence between two states, the preferred one of equals."""
        most = self.least(first, last) * (1 + EQUAL)
        good = [index for index, table in enumerate(self._costs(last)) if table[0, first] <= most]
        return min((self._sequence(index, first, last) for index in good), key=preference)

    def _sequence(self, index: int, first: int, last: int) -> list[StageCandidate]:
        """A best sequence whose costs are in the table of that index.

        The tables hold costs alone, so the stages are found again from the first one on: each is a stage whose cost and
        the cost of the rest after it do not exceed the best cost from its worker and state. Without `by_depth` the one
        table serves for every rest; otherwise `index` stages follow the first one, index - 1 the second, ..., and each
        rest is in another table, of which the one of no stages is not among the stored.
        """
        tables = self._costs(last)
        rests: Iterable[tuple[int, Table]] = repeat((0, _linked(tables[0], self.links)))
        if self.by_depth:
            behind = [self._end(last), *(_linked(table, self.links) for table in tables[:index])]
            rests = reversed(list(enumerate(behind)))
        parts: list[StageCandidate] = []
        worker, state = 0, first
        for following, rest in rests:
            parts.append(part := _next_part(self.stages(worker, following), rest, worker, state))
            worker, state = worker + part.replicas, part.last
            if worker == len(self.links):
                break
        return parts

    def _costs(self, last: int) -> list[Table]:
        """At [worker, state], the minimal bottleneck cost of stages from there to the last state.

        A single table, or one for each number of stages from 1.
        """
        if last not in self._costs_to:
            self._costs_to[last] = (
                list(self._costs_by_depth(last))
                if self.by_depth
                else [self._costs_of_any_depth([last])[:, 0, : last + 1]]
            )
        return self._costs_to[last]

    def _costs_of_any_depth(self, lasts: Sequence[int]) -> Table:
        """At [worker, index of the last state, state], the minimal bottleneck cost of stages between the two states."""
        workers, count = len(self.links), len(self.links[0])
        best = np.full((workers + 1, len(lasts), count), np.inf)
        best[workers, range(len(lasts)), lasts] = 0.0
        rest = best.copy()  # with the link in front of it
        for worker in reversed(range(workers)):
            stages = self.stages(worker, 0)
            best[worker] = _cheapest(stages, rest[worker + 1 : worker + 1 + len(stages)], lasts)
            rest[worker] = np.maximum(best[worker], self.links[worker])
        return best

    def _costs_by_depth(self, last: int) -> Iterator[Table]:
        rest = self._end(last)
        for behind in range(min(len(self.links), last)):
            best = np.full_like(rest, np.inf)
            for worker in range(len(self.links) - behind):
                best[worker] = self._best(worker, behind, rest, last)
            yield best
            rest = _linked(best, self.links)

    def _best(self, worker: int, behind: int, rest: Table, last: int) -> Vector:
        """Minimal bottleneck cost of stages that begin with a worker, from each state."""
        after = rest[worker + 1 :]
        possible = np.flatnonzero(np.isfinite(after).any(axis=1))
        if not possible.size:
            return np.full(last + 1, np.inf)
        first, most = int(possible[0]), int(possible[-1]) + 1
        stages = self.stages(worker, behind)[first:most, : last + 1, : last + 1]
        best: Vector = _cheapest(stages, after[first : first + len(stages), np.newaxis], [last])[0]
        return best

    def _end(self, last: int) -> Table:
        """Costs of no stages: 0 after the last worker at the last state, infinite elsewhere."""
        rest: Table = np.full((len(self.links) + 1, last + 1), np.inf)
        rest[-1, last] = 0.0
        return rest


def _linked(best: Table, links: Sequence[Vector]) -> Table:
    """Costs of what is left at [worker, state], with the link in front of each worker."""
    linked = best.copy()
    for worker, link in enumerate(links):
        np.maximum(linked[worker], link[: best.shape[1]], out=linked[worker])
    return linked


def _next_part(stages: Table, rest: Table, worker: int, state: int) -> StageCandidate:
    """The first stage of a best sequence from a worker and a state.

    Args:
        stages: of the worker.
        rest: the costs of what may follow, at [worker, state], with the link in front of each.
        worker: the first of the sequence.
        state: at which the sequence begins.
    """
    costs = stages[:, state, : rest.shape[1]]
    compared = np.maximum(costs, rest[worker + 1 : worker + 1 + len(costs)])
    good = np.argwhere(compared <= compared.min() * (1 + EQUAL))
    count, end = max(good.tolist(), key=lambda each: (each[0], -each[1]))
    return StageCandidate(state, end, worker, count + 1, float(costs[count, end]))


def _cheapest(stages: Table, behind: Table, lasts: Sequence[int]) -> Table:
    """At [index of the last state, state], the minimal bottleneck of a stage from there and of the stages after it.

    That is the minimum of max(stages[count - 1, state, end], behind[count - 1, index, end]) over count and end. All of
    them at once would be a table of (workers, states, states), hundreds of megabytes for thousands of states, which the
    CPU would write to memory and read again for each minimum; rows of a block stay in its cache. As a stage ends after
    its first state, the columns before a block's first row are left out.

    Args:
        stages: [count - 1, first state, last state].
        behind: [count - 1, index of the last state, state], the link in front of it included.
        lasts: the last states.
    """
    best: Table = np.full(behind.shape[1:], np.inf)
    count, end = max(lasts) + 1, 0
    while end < count:
        begin, end = end, min(count, end + max(1, _BLOCK // (len(stages) * (count - end))))
        rows = stages[:, begin:end, begin:]
        for index, last in enumerate(lasts):
            if last > begin:
                after = behind[:, index, begin : last + 1]
                compared = np.maximum(rows[:, :, : after.shape[1]], after[:, np.newaxis])
                best[index, begin:end] = np.minimum.reduce(np.minimum.reduce(compared, axis=2), axis=0)
    return best
