"""Where to cut a chain if processes have several stages each: the process with the largest sum counts."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from math import comb, inf

from pipetrain.engine.models.cuts import balanced_cuts, unit_starts
from pipetrain.engine.schedules.placement import Placement

_FEW = 3000
"""Ways to cut a chain that are all tried."""
_OF_LARGEST = 0.1
"""Share of the largest stage in a cost: pipelines wait less if the stages of a process are alike, too."""


def placed_cost(placement: Placement, seconds: Sequence[float]) -> float:
    """Cost of stages: the sum of the slowest process; of nearly equal sums those of more even stages cost less."""
    several = max(map(len, placement.stages_of))
    return max(placement.sums(seconds)) + _OF_LARGEST * several * max(seconds)


def process_balanced_cuts(
    costs: Sequence[Sequence[float]],
    placement: Placement,
    glued: Sequence[tuple[int, int]] = (),
    weighted: Sequence[bool] = (),
) -> list[int]:
    """The first layer of every stage but the first, such that the slowest process is fast; see `balanced_cuts`.

    Args:
        costs: [stage][layer].
        placement: the stages of each process.
        glued: pairs of layers that no cut separates.
        weighted: of each layer, True if it has weights: as many stages as possible get such a layer.

    Raises:
        ValueError: a cost is negative or not finite, or there are fewer units that may be cut apart than stages.
    """
    layers = len(costs[0])
    sums = [[0.0, *itertools.accumulate(row)] for row in costs]
    held = [0, *itertools.accumulate(weighted or [True] * layers)]

    def cost(cuts: Sequence[int]) -> tuple[float, ...]:
        ends = list(itertools.pairwise([0, *cuts, layers]))
        empty = sum(held[first] == held[last] for first, last in ends)
        seconds = [row[last] - row[first] for row, (first, last) in zip(sums, ends, strict=True)]
        return empty, placed_cost(placement, seconds)

    return cheapest_cuts(unit_starts(layers, glued), balanced_cuts(costs, glued, weighted), cost)


def cheapest_cuts(
    starts: Sequence[int], cuts: Sequence[int], cost: Callable[[Sequence[int]], tuple[float, ...]]
) -> list[int]:
    """The cuts of least cost: of all if they are few, otherwise those that `nearby_cuts` finds.

    Args:
        starts: where units begin, 0 first; a cut is any later one.
        cuts: to begin with.
        cost: of cuts; compared as tuples.
    """
    if comb(len(starts) - 1, len(cuts)) <= _FEW:
        return min(map(list, itertools.combinations(starts[1:], len(cuts))), key=cost)
    return nearby_cuts(starts, cuts, cost)


def nearby_cuts(
    starts: Sequence[int], cuts: Sequence[int], cost: Callable[[Sequence[int]], tuple[float, ...]], most: float = inf
) -> list[int]:
    """The cuts reached by moving one or two at a time while this costs less.

    With `most`, one at a time by two units at most, and costs of about so many cuts are compared.
    """
    place = {start: i for i, start in enumerate(starts)}
    best, least = [place[cut] for cut in cuts], cost(cuts)
    while most > 0:
        moves = list(_moves(best, len(starts)) if most == inf else _short_moves(best, len(starts)))
        most -= len(moves)
        found, moved = min(((cost([starts[i] for i in each]), each) for each in moves), default=(least, best))
        if found >= least:
            break
        best, least = moved, found
    return [starts[i] for i in best]


def _short_moves(places: Sequence[int], count: int) -> Iterator[list[int]]:
    """All ways to move one place between its neighbors by two at most."""
    ends = [0, *places, count]
    for k, place in enumerate(places):
        for other in range(max(ends[k] + 1, place - 2), min(ends[k + 2], place + 3)):
            yield [*places[:k], other, *places[k + 1 :]]


def _moves(places: Sequence[int], count: int) -> Iterator[list[int]]:
    """All ways to move one place between its neighbors, or two places by one each."""
    ends = [0, *places, count]
    for k in range(len(places)):
        for other in range(ends[k] + 1, ends[k + 2]):
            yield [*places[:k], other, *places[k + 1 :]]
    for a, b in itertools.combinations(range(len(places)), 2):
        for step_a, step_b in itertools.product((-1, 1), repeat=2):
            moved = list(places)
            moved[a] += step_a
            moved[b] += step_b
            if all(x < y for x, y in itertools.pairwise([0, *moved, count])):
                yield moved
