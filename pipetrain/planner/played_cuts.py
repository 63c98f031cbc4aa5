"""The cuts of a pipeline that are fastest by a play, where no dynamic program can tell."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations, pairwise
from math import comb
from typing import TypeAlias

from pipetrain.planner.found_stage import FoundStage
from pipetrain.planner.row_search import RowSearch

Cuts: TypeAlias = tuple[int, ...]
"""The states between the stages."""

_FEW = 2000
"""Cuts that are all looked at."""
_MOST_PLAYED = 300
"""Cuts that are played, in some seconds."""
_MOST_NUMBERS = 2e7
"""Of the tables of all stages, 160 MB."""
_STEPS = (-1, 1, -2, 2)
"""States by which a cut is moved."""
_GAIN = 1 - 1e-9
"""Cuts are better where they take less than this share of the time."""


class PlayedCuts:
    """The fastest of the cuts that were played, beginning with those of a search for a fast slowest stage.

    Where all cuts are few, they are played from the one whose slowest stage is fastest on, for as long as that may
    still be better; else single cuts are moved for as long as that makes the pipeline faster.
    """

    def __init__(self, search: RowSearch, seconds: Callable[[Sequence[FoundStage]], float]) -> None:
        """Plays the cuts that the search finds.

        Args:
            search: of the stages; there are some that fit.
            seconds: of a minibatch by a play of stages.
        """
        self._replicas, self._seconds = search.row.replicas, seconds
        self._costs = [search.stage_costs(r)[0] for r in range(len(self._replicas))]
        self._best: Cuts = tuple(stage.last for stage in list(search.stages())[:-1])
        self._time_s = seconds(self._stages(self._best))
        self._tried = {self._best}

    @staticmethod
    def small_enough(search: RowSearch) -> bool:
        """Whether the tables of all stages can be held at once."""
        return len(search.row.replicas) * len(search.states) ** 2 <= _MOST_NUMBERS

    def stages(self) -> list[FoundStage]:
        """Those of the fastest cuts."""
        if comb(self._last - 1, len(self._best)) <= _FEW:
            every = combinations(range(1, self._last), len(self._best))
            self._try(sorted(every, key=self._slowest_s))
        else:
            while self._try(list(self._moved())):
                pass
        return self._stages(self._best)

    def _try(self, candidates: Iterable[Cuts]) -> bool:
        """Plays those that may beat the best cuts so far, keeps the winner, and says whether there was a new one."""
        before = self._best
        for cuts in candidates:
            if cuts not in self._tried and self._slowest_s(cuts) < self._time_s and len(self._tried) < _MOST_PLAYED:
                self._tried.add(cuts)
                if (time_s := self._seconds(self._stages(cuts))) < self._time_s * _GAIN:
                    self._best, self._time_s = cuts, time_s
        return self._best != before

    def _moved(self) -> Iterator[Cuts]:
        """The best cuts with one of them moved a little."""
        bounds = [0, *self._best, self._last]
        for r, step in ((r, step) for r in range(len(self._best)) for step in _STEPS):
            moved = self._best[r] + step
            if bounds[r] < moved < bounds[r + 2]:
                yield (*self._best[:r], moved, *self._best[r + 1 :])

    def _slowest_s(self, cuts: Cuts) -> float:
        """Of its stages; infinite where they are none, or do not fit."""
        return max(stage.time_s for stage in self._stages(cuts))

    @property
    def _last(self) -> int:
        """The last state."""
        return len(self._costs[0]) - 1

    def _stages(self, cuts: Cuts) -> list[FoundStage]:
        parts = zip(pairwise([0, *cuts, self._last]), self._replicas, self._costs, strict=True)
        return [FoundStage(*ends, replicas, float(costs[ends])) for ends, replicas, costs in parts]
