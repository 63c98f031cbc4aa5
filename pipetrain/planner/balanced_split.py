"""The contiguous split of a sequence of costs whose largest part is smallest: pure arithmetic, no torch."""

import itertools
import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence


def balanced(costs: Sequence[float], num_stages: int, glued: Sequence[tuple[int, int]] = ()) -> list[int]:
    """The first layer of every stage but the first, in the split whose largest stage is smallest.

    Of several such splits it is the lexicographically smallest one: earlier stages, which hold the most weight
    versions and activations, get the fewest layers. No cut separates the two layers of a pair in `glued`.

    Raises:
        ValueError: a cost is negative or not finite, or there are fewer units that may be cut apart than stages.
    """
    if not all(cost >= 0 and math.isfinite(cost) for cost in costs):
        raise ValueError(f"costs must be finite and not negative: {list(costs)}")
    starts = units(len(costs), glued)
    if not 1 <= num_stages <= len(starts):
        raise ValueError(f"{num_stages} stages of {len(starts)} units: between 1 and {len(starts)} are possible")
    sums = [0.0, *itertools.accumulate(costs)]
    prefix = [sums[start] for start in starts] + [sums[-1]]
    return [starts[unit] for unit in _smallest_cuts(prefix, num_stages, _bottleneck(prefix, num_stages))]


def units(layers: int, glued: Iterable[tuple[int, int]]) -> list[int]:
    """The first layer of every unit: a longest run of layers that `glued` pairs keep together."""
    forbidden = {cut for i, j in glued for cut in range(min(i, j) + 1, max(i, j) + 1)}
    return [cut for cut in range(layers) if cut not in forbidden]


def _bottleneck(prefix: Sequence[float], num_stages: int) -> float:
    """The smallest limit, to the last bit, under which greedy filling needs at most `num_stages` stages."""
    low = max(b - a for a, b in itertools.pairwise(prefix))
    if _stages_needed(prefix, low)[0] <= num_stages:
        return low
    high = prefix[-1]
    while low < (middle := (low + high) / 2) < high:
        if _stages_needed(prefix, middle)[0] <= num_stages:
            high = middle
        else:
            low = middle
    return high


def _stages_needed(prefix: Sequence[float], limit: float) -> list[int]:
    """For every unit, the fewest stages of at most `limit` each that the units from it to the last one fill."""
    count = len(prefix) - 1
    needed = [0] * (count + 1)
    for unit in reversed(range(count)):
        needed[unit] = needed[_reach(prefix, unit, limit)] + 1
    return needed


def _reach(prefix: Sequence[float], unit: int, limit: float) -> int:
    """The end of the longest stage of at most `limit` that starts at `unit`.

    Differences of prefix sums, never prefix + limit, decide: so the limit found by bisection is met exactly.
    """
    return bisect_right(prefix, limit, lo=unit + 1, key=lambda end: end - prefix[unit]) - 1


def _smallest_cuts(prefix: Sequence[float], num_stages: int, limit: float) -> list[int]:
    needed = _stages_needed(prefix, limit)
    cuts: list[int] = []
    for left in range(num_stages - 1, 0, -1):  # stages that follow the cut
        first = cuts[-1] + 1 if cuts else 1
        cuts.append(next(cut for cut in range(first, len(prefix)) if needed[cut] <= left))
    return cuts
