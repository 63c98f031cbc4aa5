"""Where to cut a chain of layers into stages whose largest cost is smallest."""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence


def balanced_cuts(
    costs: Sequence[Sequence[float]], glued: Sequence[tuple[int, int]] = (), weighted: Sequence[bool] = ()
) -> list[int]:
    """The first layer of every stage but the first, in the split whose largest stage is smallest.

    Of several such splits it is the lexicographically smallest one: earlier stages, which hold the most weight
    versions and activations, get the fewest layers.

    Args:
        costs: [stage][layer].
        glued: pairs of layers that no cut separates.
        weighted: of each layer, True if it has weights: every stage gets such a layer, if there is such a split.

    Raises:
        ValueError: a cost is negative or not finite, or there are fewer units that may be cut apart than stages.
    """
    if not all(cost >= 0 and math.isfinite(cost) for row in costs for cost in row):
        raise ValueError(f"costs must be finite and not negative: {[list(row) for row in costs]}")
    layers = len(costs[0]) if costs else 0
    starts = unit_starts(layers, glued)
    if not 1 <= len(costs) <= len(starts):
        raise ValueError(f"{len(costs)} stages of {len(starts)} units: between 1 and {len(starts)} are possible")
    ends = [*starts, layers]
    prefix = [[sums[end] for end in ends] for sums in ([0.0, *itertools.accumulate(row)] for row in costs)]
    counts = [0, *itertools.accumulate(weighted or [True] * layers)]
    cuts = _split(prefix, [counts[end] for end in ends])
    if cuts is None:
        cuts = _split(prefix, ends) or []
    return [starts[unit] for unit in cuts]


def unit_starts(layers: int, glued: Iterable[tuple[int, int]]) -> list[int]:
    """The first layer of every unit: a longest run of layers that `glued` pairs keep together."""
    forbidden = {cut for i, j in glued for cut in range(min(i, j) + 1, max(i, j) + 1)}
    return [cut for cut in range(layers) if cut not in forbidden]


def _split(prefix: Sequence[Sequence[float]], held: Sequence[int]) -> list[int] | None:
    """The first unit of every stage but the first; None if some stage would have none of the required layers.

    Args:
        prefix: [stage][end], the cost of the units before each end.
        held: [end], the number of layers before it of which every stage must have one.
    """
    stages, count = len(prefix), len(prefix[0])

    def parts(stage: int, unit: int) -> Iterator[tuple[int, float]]:
        """(end, cost) of the parts that a stage may take from a unit on; the last stage takes all."""
        for end in range(count - 1 if stage == stages - 1 else unit + 1, count - stages + stage + 1):
            if held[end] > held[unit]:
                yield end, prefix[stage][end] - prefix[stage][unit]

    # [stage][unit], the smallest possible bottleneck of this and later stages on this and later units
    best = [[math.inf] * count for _ in range(stages)]
    for stage in reversed(range(stages)):
        for unit in range(stage, count - stages + stage):
            for end, cost in parts(stage, unit):
                if cost >= best[stage][unit]:
                    break  # a longer part costs more
                rest = best[stage + 1][end] if stage < stages - 1 else 0.0
                best[stage][unit] = min(best[stage][unit], max(cost, rest))
    limit = best[0][0]
    if math.isinf(limit):
        return None
    cuts = [0]
    for stage in range(stages - 1):
        cuts.append(next(end for end, cost in parts(stage, cuts[-1]) if cost <= limit >= best[stage + 1][end]))
    return cuts[1:]
