"""Claims about trained models as orders of measured means, and the verdict that the runs give."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

from pipetrain.report.sweep.columns import column_of
from pipetrain.reproduce.difference import Difference, Relation, shown
from pipetrain.reproduce.results import Measured, MeasuredGroup, Results
from pipetrain.reproduce.targets import FULL
from pipetrain.reproduce.verdict import NOT_TESTED, Verdict


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
        within: how much worse one that is no worse may be, as the paper says it; None: what `Difference` takes.
        factor: by how much one that is better is so, as the paper says it.
        full: whether the small scale cannot tell.
    """

    experiment: str
    first: str
    relation: Relation
    others: tuple[str, ...]
    metric: str | None = None
    against: str | None = None
    within: float | None = None
    factor: float | None = None
    full: bool = False


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
    full: ClassVar[bool] = True


Rule = Order | Growth
"""How the results of experiments decide on a claim."""


@dataclass(frozen=True)
class _Answer:
    """What results say on a part of a rule.

    Attributes:
        holds: None where the runs scatter too much to tell.
        where: the experiment and the metric.
        first: what is compared.
        seen: with what, and how it stands to that.
    """

    holds: bool | None
    where: str
    first: str
    seen: str


def verdict(rules: Sequence[Rule], results: Results, *, superlative: bool = False) -> Verdict | None:
    """The verdict of the rules whose experiments were run; None where none was.

    Holds if all do, holds partly if some do; a superlative, one before all others, does not hold where any of them does
    not. Where the runs scatter too much to tell anything, nothing was tested.
    """
    found = [answer for rule in rules for answer in _answers(rule, results)]
    if not found:
        return None
    holding, refuted = (sum(answer.holds is value for answer in found) for value in (True, False))
    word = "holds" if holding == len(found) else "holds partly" if holding else "does not hold"
    if superlative and refuted:
        word = "does not hold"
    if not holding and not refuted:
        word = NOT_TESTED
    places = dict.fromkeys(answer.where for answer in found)
    return Verdict(word, "<br>".join(f"{where}: {_told(found, where)}" for where in places))


def _told(answers: Sequence[_Answer], where: str) -> str:
    """What was seen in one experiment, each that is compared with all its others."""
    seen: dict[str, dict[str, None]] = {}
    for answer in answers:
        if answer.where == where:
            seen.setdefault(answer.first, {})[answer.seen] = None
    return "; ".join(f"{first} {_listed(list(others))}" for first, others in seen.items())


def _listed(parts: Sequence[str]) -> str:
    *before, last = parts
    return f"{', '.join(before)}, and {last}" if before else last


def companions(experiment: str, results: Results) -> list[Measured]:
    """What was measured of an experiment and of its companions, at the scale of the first of them."""
    names = [name for name in results if name == experiment or name.startswith(f"{experiment}_")]
    scale = max((results[name].scale == FULL for name in names), default=False)
    return [results[name] for name in names if (results[name].scale == FULL) == scale]


def _answers(rule: Rule, results: Results) -> Iterator[_Answer]:
    """What the results say on each part of a rule."""
    return _growth(rule, results) if isinstance(rule, Growth) else _order(rule, results)


def _order(order: Order, results: Results) -> Iterator[_Answer]:
    """Whether the order holds, for each of the others."""
    there, beside = companions(order.experiment, results), companions(order.against or order.experiment, results)
    first = _groups(there).get(order.first)
    if first is None or (order.full and there[0].scale != FULL):
        return
    for other in filter(None, map(_groups(beside).get, order.others)):
        if metric := _metric(order.metric or there[0].metric, first, other):
            difference = Difference(first, other, metric, order.within)
            where, ours = f"{_where(there[0])}, {column_of(metric).head}", shown(first, metric)
            seen = f"{difference.word(order.relation)} {shown(other, metric)}"
            holds = difference.shows(order.relation)
            if holds and order.relation is Relation.LIKE and not _tells_any(difference, _groups(there)):
                yield _Answer(None, where, ours, f"{seen}, as are all others there")
            else:
                yield _Answer(holds, where, ours, seen)
                if holds and order.factor and metric in other.means:
                    ratio = difference.ratio
                    yield _Answer(
                        ratio >= order.factor, where, ours, f"{ratio:.2f}X of it (the paper: {order.factor:g}X)"
                    )


def _tells_any(difference: Difference, there: Mapping[str, MeasuredGroup]) -> bool:
    """Whether the experiment shows any to be worse; where all learn alike, that one does says nothing of it."""
    if not difference.of_learning:
        return True
    beside = [group for group in there.values() if group.name not in (difference.first.name, difference.other.name)]
    told = (replace(difference, first=group).shows(Relation.LIKE) is False for group in beside)
    return not beside or any(told)


def _where(measured: Measured) -> str:
    """The experiment, its scale, and the network and data that the small scale has in place of the paper's."""
    changed = ", ".join(filter(None, (measured.network, measured.data)))
    return f"{measured.experiment}, {measured.scale}" + (f" ({changed})" if changed else "")


def _growth(growth: Growth, results: Results) -> Iterator[_Answer]:
    """Whether the ratio rises with each of those experiments that were run at full scale."""
    ratios = {name: _ratio(growth, companions(name, results)) for name in growth.experiments}
    known = {name: ratio for name, ratio in ratios.items() if ratio is not None}
    for (name, ratio), (larger, more) in pairwise(known.items()):
        where = f"{growth.first} over {growth.other}"
        yield _Answer(more > ratio, where, f"{ratio:.2f} in {name},", f"{more:.2f} in {larger}")


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


def _metric(asked: str | None, *groups: MeasuredGroup) -> str | None:
    """The column that is asked for, or the measured one in place of a predicted one; None where no group has it."""
    if asked is None:
        return None
    named = (asked, asked.removeprefix("predicted_"))
    completed = [group for group in groups if group.completed] or groups
    return next((name for name in named if any(name in group.means for group in completed)), None)
