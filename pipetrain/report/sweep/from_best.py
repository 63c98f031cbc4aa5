"""What separates each row from the first, and whether the seeds tell the two apart."""

import math
from collections.abc import Sequence

from pipetrain.report.interval import Interval, between_seeds
from pipetrain.report.sweep.columns import column_of, decimals_of
from pipetrain.report.sweep.groups import SweepGroup

FROM_BEST = "from the best"
FROM_BEST_NOTE = (
    "from the best: difference to the first row, with its 95 % confidence interval (t, seed by seed where both rows "
    "have the same); undecided: the interval includes 0, or a row has a single seed"
)


def differences(groups: Sequence[SweepGroup], metric: str | None) -> list[Interval | None]:
    """The mean of each group minus that of the first; None of the first itself and where there is nothing to compare.

    Args:
        groups: best first.
        metric: what they are ranked by.
    """
    best = groups[0].by_seed(metric) if metric and groups and groups[0].completed else {}
    if metric is None or not best:
        return [None] * len(groups)
    compared = [group.by_seed(metric) if group.completed else {} for group in groups[1:]]
    return [None, *(between_seeds(own, best) if own else None for own in compared)]


def difference_cells(groups: Sequence[SweepGroup], metric: str | None) -> list[str]:
    """The column of the table; empty where no row can be compared with the first."""
    found = differences(groups, metric)
    if metric is None or not any(found):
        return []
    decimals = decimals_of(groups, metric)
    return ["-" if each is None else _cell(each, metric, decimals) for each in found]


def _cell(difference: Interval, metric: str, decimals: int) -> str:
    text = column_of(metric).text or (lambda value: f"{value:.{decimals}f}")
    sign = "-" if difference.middle < 0 else "+"
    spread = "" if math.isinf(difference.half) else f" ± {text(difference.half)}"
    return f"{sign}{text(abs(difference.middle))}{spread}{'' if difference.decided else ' undecided'}"
