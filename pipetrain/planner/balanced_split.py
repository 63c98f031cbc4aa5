"""The contiguous split of a sequence of costs whose largest part is smallest: pure arithmetic, no torch."""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass


def balanced(
    costs: Sequence[Sequence[float]], glued: Sequence[tuple[int, int]] = (), weighted: Sequence[bool] = ()
) -> list[int]:
    """The first layer of every stage but the first, in the split whose largest stage is smallest.

    Of several such splits it is the lexicographically smallest one: earlier stages, which hold the most weight
    versions and activations, get the fewest layers.

    Args:
        costs: for each stage, what each layer costs there.
        glued: pairs of layers that no cut separates.
        weighted: whether each layer has weights: every stage gets one that has, if there is such a split.

    Raises:
        ValueError: a cost is negative or not finite, or there are fewer units that may be cut apart than stages.
    """
    if not all(cost >= 0 and math.isfinite(cost) for row in costs for cost in row):
        raise ValueError(f"costs must be finite and not negative: {[list(row) for row in costs]}")
    layers = len(costs[0]) if costs else 0
    starts = units(layers, glued)
    if not 1 <= len(costs) <= len(starts):
        raise ValueError(f"{len(costs)} stages of {len(starts)} units: between 1 and {len(starts)} are possible")
    ends = [*starts, layers]
    prefix = [[sums[end] for end in ends] for sums in ([0.0, *itertools.accumulate(row)] for row in costs)]
    counts = [0, *itertools.accumulate(weighted or [True] * layers)]
    cuts = _Split(prefix, [counts[end] for end in ends]).cuts()
    if cuts is None:
        cuts = _Split(prefix, ends).cuts() or []
    return [starts[unit] for unit in cuts]


def units(layers: int, glued: Iterable[tuple[int, int]]) -> list[int]:
    """The first layer of every unit: a longest run of layers that `glued` pairs keep together."""
    forbidden = {cut for i, j in glued for cut in range(min(i, j) + 1, max(i, j) + 1)}
    return [cut for cut in range(layers) if cut not in forbidden]


@dataclass(frozen=True)
class _Split:
    """Units to be split.

    Attributes:
        prefix: for each stage, the cost of the units before each end of one.
        held: how many things that every stage must have are in the units before each end.
    """

    prefix: Sequence[Sequence[float]]
    held: Sequence[int]

    def cuts(self) -> list[int] | None:
        """The first unit of every stage but the first; None where some stage would go without."""
        best = self._bottlenecks()
        limit = best[0][0]
        if math.isinf(limit):
            return None
        cuts: list[int] = []
        for stage in range(len(self.prefix) - 1):
            first = cuts[-1] if cuts else 0
            parts = self._parts(stage, first)
            cuts.append(next(end for end, cost in parts if cost <= limit and best[stage + 1][end] <= limit))
        return cuts

    def _bottlenecks(self) -> list[list[float]]:
        """For every stage and unit, the smallest limit under which the stages from it on take the units from it on."""
        stages, count = len(self.prefix), len(self.prefix[0])
        best = [[math.inf] * count for _ in range(stages)]
        for stage in reversed(range(stages)):
            for unit in range(stage, count - stages + stage):
                for end, cost in self._parts(stage, unit):
                    if cost >= best[stage][unit]:
                        break  # a longer part costs more
                    rest = best[stage + 1][end] if stage < stages - 1 else 0.0
                    best[stage][unit] = min(best[stage][unit], max(cost, rest))
        return best

    def _parts(self, stage: int, unit: int) -> Iterator[tuple[int, float]]:
        """(end, cost) of what the stage may take from the unit on, the last stage all of it."""
        costs, last = self.prefix[stage], len(self.prefix) - 1
        final = len(costs) - 1
        for end in range(final if stage == last else unit + 1, final - last + stage + 1):
            if self.held[end] > self.held[unit]:
                yield end, costs[end] - costs[unit]
