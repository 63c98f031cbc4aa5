"""What separates each row from the first, and whether the seeds tell the two apart."""

import math
from collections.abc import Sequence

from pipetrain.report.sweep.columns import column_of, decimals_of
from pipetrain.report.sweep.groups import SweepGroup
from pipetrain.report.sweep.t_interval import MeanDifference, mean_difference

HEAD = "from the best"
NOTE = (
    "from the best: difference to the first row, with its 95 % confidence interval (t, seed by seed where both rows "
    "have the same); undecided: the interval includes 0, or a row has a single seed"
)


def differences(groups: Sequence[SweepGroup], metric: str | None) -> list[MeanDifference | None]:
    """The mean of each group minus that of the first; None of the first itself and where there is nothing to compare.

    Args:
        groups: best first.
        metric: what they are ranked by.
    """
    best = groups[0].by_seed(metric) if metric and groups and groups[0].completed else {}
    if metric is None or not best:
        return [None] * len(groups)
    compared = [group.by_seed(metric) if group.completed else {} for group in groups[1:]]
    return [None, *(mean_difference(own, best) if own else None for own in compared)]


def cells(groups: Sequence[SweepGroup], metric: str | None) -> list[str]:
    """The column of the table; empty where no row can be compared with the first."""
    found = differences(groups, metric)
    if metric is None or not any(found):
        return []
    decimals = decimals_of(groups, metric)
    return ["-" if each is None else _cell(each, metric, decimals) for each in found]


def _cell(difference: MeanDifference, metric: str, decimals: int) -> str:
    text = column_of(metric).text or (lambda value: f"{value:.{decimals}f}")
    sign = "-" if difference.mean < 0 else "+"
    spread = "" if math.isinf(difference.half_width) else f" ± {text(difference.half_width)}"
    return f"{sign}{text(abs(difference.mean))}{spread}{'' if difference.decided else ' undecided'}"
