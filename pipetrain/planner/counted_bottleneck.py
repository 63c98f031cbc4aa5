"""The sequence of stages whose largest is smallest, where what a stage costs depends on how many stages follow."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pipetrain.planner.bottleneck import Part, cheapest, chosen
from pipetrain.planner.cut_states import Table, Vector


@dataclass(frozen=True)
class CountedBottleneck:
    """Workers in a row as those of `Bottleneck`; the dynamic program has the number of stages as a dimension more.

    Attributes:
        stages: of a worker and a number of stages behind, what a stage costs that begins with the worker: [count - 1,
            first state, last state], of as many counts as it may have.
        links: for each worker, what the cut at each state costs between the one before and it.
    """

    stages: Callable[[int, int], Table]
    links: Sequence[Vector]

    def costs(self, last: int) -> list[Table]:
        """By number of stages, from 1: at [worker, state], the smallest largest cost of so many to the state `last`."""
        rest = self._nothing(last)
        found = []
        for behind in range(min(len(self.links), last)):
            best = np.full_like(rest, np.inf)
            for worker in range(len(self.links) - behind):
                best[worker] = self._best(worker, behind, rest, last)
            found.append(best)
            rest = self._linked(best)
        return found

    def parts(self, first: int, costs: Sequence[Table]) -> Iterator[Part]:
        """The stages of a best sequence of `len(costs)` from a state to the one that they lead to.

        Of equal ones, each stage in turn, from the first, has as many workers as it can, then as few layers.
        """
        worker, state, last = 0, first, costs[0].shape[1] - 1
        rests = [self._nothing(last), *map(self._linked, costs[:-1])]
        for behind, rest in reversed(list(enumerate(rests))):
            stages = self.stages(worker, behind)[:, state, : last + 1]
            count, end = chosen(stages, rest[worker + 1 : worker + 1 + len(stages)])
            yield Part(state, end, worker, count)
            worker, state = worker + count, end

    def _best(self, worker: int, behind: int, rest: Table, last: int) -> Vector:
        """The smallest largest cost of stages that begin with a worker, from each state."""
        after = rest[worker + 1 :]
        possible = np.flatnonzero(np.isfinite(after).any(axis=1))
        if not possible.size:
            return np.full(last + 1, np.inf)
        first, most = int(possible[0]), int(possible[-1]) + 1
        stages = self.stages(worker, behind)[first:most, : last + 1, : last + 1]
        best: Vector = cheapest(stages, after[first : first + len(stages), np.newaxis], [last])[0]
        return best

    def _nothing(self, last: int) -> Table:
        """What no stage costs: nothing behind the last worker at the last state, and nowhere else."""
        rest: Table = np.full((len(self.links) + 1, last + 1), np.inf)
        rest[-1, last] = 0.0
        return rest

    def _linked(self, best: Table) -> Table:
        """The same with the link in front of each worker."""
        linked = best.copy()
        for worker, link in enumerate(self.links):
            np.maximum(linked[worker], link[: best.shape[1]], out=linked[worker])
        return linked
