"""Claims about trained models as orders of measured means, and the verdict that the runs give."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from pipetrain.report.sweep.columns import column_of
from pipetrain.report.text_table import counted
from pipetrain.reproduce.results import Measured, MeasuredGroup, Results
from pipetrain.reproduce.verdict import Verdict

_ERRORS = 2.0
"""Standard errors of a difference of means from which on it is one."""


class Relation(Enum):
    """How one mean stands to others."""

    BETTER = "better than"
    LIKE = "no worse than"
    WORSE = "worse than"


@dataclass(frozen=True)
class Order:
    """One mean against others, in an experiment and its companions.

    Attributes:
        experiment: the preset; those whose names begin with its own and `_` belong to it.
        first: the name of a group.
        relation: of its mean to those of the others.
        others: the names of groups.
        metric: a column; by default what the experiment is ranked by.
    """

    experiment: str
    first: str
    relation: Relation
    others: tuple[str, ...]
    metric: str | None = None


def verdict(orders: Sequence[Order], results: Results) -> Verdict | None:
    """The verdict of the orders whose experiments were run: holds if all do, holds partly if some do; else None."""
    found = [answer for order in orders for answer in _answers(order, results)]
    if not found:
        return None
    holding = sum(holds for holds, _ in found)
    word = "holds" if holding == len(found) else "holds partly" if holding else "does not hold"
    return Verdict(word, "; ".join(dict.fromkeys(text for _, text in found)))


def companions(experiment: str, results: Results) -> list[Measured]:
    """What was measured of an experiment and of its companions, at the scale of the first of them."""
    names = [name for name in results if name == experiment or name.startswith(f"{experiment}_")]
    scale = max((results[name].scale == "full" for name in names), default=False)
    return [results[name] for name in names if (results[name].scale == "full") == scale]


def _answers(order: Order, results: Results) -> Iterator[tuple[bool, str]]:
    """Whether the order holds, for each of the others, and from what this is seen."""
    there = companions(order.experiment, results)
    groups = {group.name: group for each in there for group in each.groups}
    if order.first not in groups:
        return
    metric = order.metric or there[0].metric
    for name in order.others:
        if name in groups:
            first, other = groups[order.first], groups[name]
            sides = f"{_shown(first, metric)} against {_shown(other, metric)}"
            yield (
                _holds(order.relation, first, other, metric),
                f"{order.experiment}, {there[0].scale}, {metric}: {sides}",
            )


def _holds(relation: Relation, first: MeasuredGroup, other: MeasuredGroup, metric: str) -> bool:
    gain = _gain(first, other, metric)
    told = abs(gain) > _ERRORS * math.hypot(_error(first, metric), _error(other, metric))
    return {
        Relation.BETTER: told and gain > 0,
        Relation.WORSE: told and gain < 0,
        Relation.LIKE: not told or gain > 0,
    }[relation]


def _gain(first: MeasuredGroup, other: MeasuredGroup, metric: str) -> float:
    """How much better the first is; one that did not complete is worse than any that did."""
    if not (first.completed and other.completed):
        return math.inf * ((first.completed > 0) - (other.completed > 0)) if first.completed != other.completed else 0.0
    sign = 1 if column_of(metric).higher else -1
    return sign * (first.means[metric] - other.means[metric])


def _error(group: MeasuredGroup, metric: str) -> float:
    """Of the mean; 0 where there is one run alone."""
    return group.deviations.get(metric, 0.0) / math.sqrt(max(1, group.completed))


def _shown(group: MeasuredGroup, metric: str) -> str:
    if not group.completed:
        return f"{group.name} {', '.join(group.ended)}"
    spread = f" ± {group.deviations[metric]:.3g}" if metric in group.deviations else ""
    runs = counted(group.completed, "run", "runs")
    return f"{group.name} {group.means[metric]:.4g}{spread} ({runs})"
