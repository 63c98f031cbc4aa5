"""Claims about trained models as orders of measured means, and the verdict that the runs give."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

from pipetrain.report.sweep.columns import column_of
from pipetrain.report.text_table import counted
from pipetrain.reproduce.results import Measured, MeasuredGroup, Results
from pipetrain.reproduce.targets import FULL
from pipetrain.reproduce.verdict import Verdict

_ERRORS = 2.0
"""Standard errors of a difference of means from which on it is one."""
_BROAD = 0.1
"""So many standard errors over the other mean from which on runs are too far apart to show that one is no worse."""


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
        metric: a column; by default what the experiment is ranked by. A predicted one is that of simulated pipelines;
            others have a measured one in its place.
        against: the experiment of the others, where it is another one.
    """

    experiment: str
    first: str
    relation: Relation
    others: tuple[str, ...]
    metric: str | None = None
    against: str | None = None


@dataclass(frozen=True)
class Growth:
    """A ratio of two groups that rises from one experiment to the next; the small scale has one model for them all.

    Attributes:
        experiments: presets.
        first: the name of a group.
        other: that of the one that it is compared to.
        metric: a column.
    """

    experiments: tuple[str, ...]
    first: str
    other: str
    metric: str


Rule = Order | Growth
"""How the results of experiments decide on a claim."""


def verdict(rules: Sequence[Rule], results: Results) -> Verdict | None:
    """The verdict of the rules whose experiments were run: holds if all do, holds partly if some do; else None."""
    found = [answer for rule in rules for answer in _answers(rule, results)]
    if not found:
        return None
    holding = sum(holds for holds, _ in found)
    word = "holds" if holding == len(found) else "holds partly" if holding else "does not hold"
    return Verdict(word, "; ".join(dict.fromkeys(text for _, text in found)))


def companions(experiment: str, results: Results) -> list[Measured]:
    """What was measured of an experiment and of its companions, at the scale of the first of them."""
    names = [name for name in results if name == experiment or name.startswith(f"{experiment}_")]
    scale = max((results[name].scale == FULL for name in names), default=False)
    return [results[name] for name in names if (results[name].scale == FULL) == scale]


def _answers(rule: Rule, results: Results) -> Iterator[tuple[bool, str]]:
    """What the results say on each part of a rule, and from what this is seen."""
    return _growth(rule, results) if isinstance(rule, Growth) else _order(rule, results)


def _order(order: Order, results: Results) -> Iterator[tuple[bool, str]]:
    """Whether the order holds, for each of the others."""
    there, beside = companions(order.experiment, results), companions(order.against or order.experiment, results)
    if (first := _groups(there).get(order.first)) is None:
        return
    for other in filter(None, map(_groups(beside).get, order.others)):
        if metric := _metric(order.metric or there[0].metric, first, other):
            sides = f"{_shown(first, metric)} against {_shown(other, metric)}"
            where = f"{order.experiment}, {there[0].scale}" + (f" on {there[0].dataset}" if there[0].dataset else "")
            yield _holds(order.relation, first, other, metric), f"{where}, {metric}: {sides}"


def _growth(growth: Growth, results: Results) -> Iterator[tuple[bool, str]]:
    """Whether the ratio rises with each of those experiments that were run at full scale."""
    ratios = {name: _ratio(growth, companions(name, results)) for name in growth.experiments}
    known = {name: ratio for name, ratio in ratios.items() if ratio is not None}
    for (name, ratio), (larger, more) in pairwise(known.items()):
        yield more > ratio, f"{growth.first} over {growth.other}: {ratio:.2f} in {name}, {more:.2f} in {larger}"


def _ratio(growth: Growth, there: Sequence[Measured]) -> float | None:
    first, other = (_groups(there).get(name) for name in (growth.first, growth.other))
    if first is None or other is None or there[0].scale != FULL:
        return None
    metric = _metric(growth.metric, first, other)
    if metric is None or not (metric in first.means and metric in other.means):
        return None
    return first.means[metric] / other.means[metric]


def _groups(there: Sequence[Measured]) -> Mapping[str, MeasuredGroup]:
    return {group.name: group for each in there for group in each.groups}


def _metric(asked: str, *groups: MeasuredGroup) -> str | None:
    """The column that is asked for, or the measured one in place of a predicted one; None where no group has it."""
    named = (asked, asked.removeprefix("predicted_"))
    completed = [group for group in groups if group.completed] or groups
    return next((name for name in named if any(name in group.means for group in completed)), None)


def _holds(relation: Relation, first: MeasuredGroup, other: MeasuredGroup, metric: str) -> bool:
    gain = _gain(first, other, metric)
    doubt = _ERRORS * math.hypot(_error(first, metric), _error(other, metric))
    told = abs(gain) > doubt
    close = not told and doubt <= _BROAD * abs(other.means.get(metric, math.inf))
    return {
        Relation.BETTER: told and gain > 0,
        Relation.WORSE: told and gain < 0,
        Relation.LIKE: gain > 0 or close,
    }[relation]


def _gain(first: MeasuredGroup, other: MeasuredGroup, metric: str) -> float:
    """How much better the first is; one that did not complete, or not come so far, is worse than any that did."""
    ours, theirs = (group.means.get(metric) if group.completed else None for group in (first, other))
    if ours is None or theirs is None:
        return math.inf * ((ours is not None) - (theirs is not None)) if (ours is None) != (theirs is None) else 0.0
    return (1 if column_of(metric).higher else -1) * (ours - theirs)


def _error(group: MeasuredGroup, metric: str) -> float:
    """Of the mean; 0 where there is one run alone."""
    return group.deviations.get(metric, 0.0) / math.sqrt(max(1, group.completed))


def _shown(group: MeasuredGroup, metric: str) -> str:
    if not group.completed:
        return f"{group.name} {', '.join(group.ended)}"
    if metric not in group.means:
        return f"{group.name} without"
    runs = counted(group.completed, "run", "runs")
    return f"{group.name} {_value(group, metric)} ({runs})"


def _value(group: MeasuredGroup, metric: str) -> str:
    """The mean, and its deviation with two digits."""
    mean, deviation = group.means[metric], group.deviations.get(metric)
    if text := column_of(metric).text:
        return text(mean)
    if not deviation:
        return f"{mean:.4g}"
    decimals = max(0, 1 - math.floor(math.log10(deviation)))
    return f"{mean:.{decimals}f} ± {deviation:.{decimals}f}"
