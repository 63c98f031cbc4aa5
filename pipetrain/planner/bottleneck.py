"""The sequence of stages whose largest is smallest: a dynamic program over states and workers, many states at once."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pipetrain.planner.cut_states import Table, Vector

_BLOCK = 1 << 15
"""Numbers that are compared at a time: as many as the processor's cache holds."""
EQUAL = 1e-12
"""Two costs that differ by rounding alone differ by less, relatively."""


class Part(NamedTuple):
    """A stage from one state to a later one, on so many workers from `worker` on."""

    first: int
    last: int
    worker: int
    workers: int


@dataclass(frozen=True)
class Bottleneck:
    """Workers in a row, each of which belongs to a stage; all are used.

    Attributes:
        stages: of a worker, what a stage costs that begins with it: [count - 1, first state, last state], of as many
            counts as it may have; infinite where there is no such stage.
        links: for each worker, what the cut at each state costs between the one before and it.
    """

    stages: Callable[[int], Table]
    links: Sequence[Vector]

    def costs(self, last: int) -> Table:
        """At [worker, state], the smallest largest cost of stages from there to the state `last`."""
        costs: Table = self._costs([last])[:, 0, : last + 1]
        return costs

    def table(self) -> Table:
        """At [first state, last state], the smallest largest cost of stages between the two."""
        costs: Table = self._costs(range(len(self.links[0])))[0]
        return costs.T

    def _costs(self, lasts: Sequence[int]) -> Table:
        """At [worker, index of the last state, state], the smallest largest cost of stages between the two states."""
        workers, count = len(self.links), len(self.links[0])
        best = np.full((workers + 1, len(lasts), count), np.inf)
        best[workers, range(len(lasts)), lasts] = 0.0
        rest = best.copy()  # with the link in front of it
        for worker in reversed(range(workers)):
            stages = self.stages(worker)
            best[worker] = cheapest(stages, rest[worker + 1 : worker + 1 + len(stages)], lasts)
            rest[worker] = np.maximum(best[worker], self.links[worker])
        return best

    def parts(self, first: int, best: Table) -> Iterator[Part]:
        """The stages of a best sequence from a state to the one that `best`, of `costs`, leads to.

        Of equal ones, each stage in turn, from the first, has as many workers as it can, then as few layers.
        """
        worker, state, last = 0, first, best.shape[1] - 1
        while worker < len(self.links):
            stages = self.stages(worker)[:, state, : last + 1]
            rest = best[worker + 1 : worker + 1 + len(stages)].copy()
            for ahead, row in enumerate(rest[: len(self.links) - worker - 1]):
                np.maximum(row, self.links[worker + 1 + ahead][: last + 1], out=row)
            count, end = chosen(stages, rest)
            yield Part(state, end, worker, count)
            worker, state = worker + count, end


def cheapest(stages: Table, behind: Table, lasts: Sequence[int]) -> Table:
    """At [index of the last state, state], the smallest largest cost of a stage from there and of what is behind it.

    Args:
        stages: [count - 1, first state, last state].
        behind: [count - 1, index of the last state, state], the link in front of it included.
        lasts: the last states.
    """
    best: Table = np.full(behind.shape[1:], np.inf)
    for begin, end in _blocks(max(lasts) + 1, len(stages)):
        rows = stages[:, begin:end, begin:]
        for index, last in enumerate(lasts):
            if last > begin:
                best[index, begin:end] = _smallest(rows, behind[:, index, begin : last + 1])
    return best


def chosen(stages: Table, behind: Table) -> tuple[int, int]:
    """The workers of the first stage of a best sequence, and the state that it ends at.

    Args:
        stages: [count - 1, state], of those that begin where the sequence does.
        behind: the same of what is behind them, the link in front of it included.
    """
    compared = np.maximum(stages, behind)
    good = np.argwhere(compared <= compared.min() * (1 + EQUAL))
    count, end = max(good.tolist(), key=lambda each: (each[0], -each[1]))
    return count + 1, end


def _smallest(rows: Table, behind: Table) -> Vector:
    """For each row, the smallest of what is larger: a stage up to a state, or what is behind it.

    Args:
        rows: [count - 1, row, state].
        behind: [count - 1, state], of the first states.
    """
    compared = np.maximum(rows[:, :, : behind.shape[1]], behind[:, np.newaxis])
    smallest: Vector = np.minimum.reduce(np.minimum.reduce(compared, axis=2), axis=0)  # quicker than `min`
    return smallest


def _blocks(count: int, depth: int) -> Iterator[tuple[int, int]]:
    """Rows (begin, end) of an upper triangle that are compared together."""
    begin = 0
    while begin < count:
        end = min(count, begin + max(1, _BLOCK // (depth * (count - begin))))
        yield begin, end
        begin = end
