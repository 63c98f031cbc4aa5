"""The verdict that runs give on a claim about what was trained or timed."""

import math
import statistics
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from papers.claims import (
    NOT_TESTED,
    SEEN_IN_PART,
    UNDECIDED,
    Answer,
    Apart,
    Contrast,
    ContrastClaim,
    Control,
    MeanRatioClaim,
    RankingClaim,
    RatioTrendClaim,
    Reaches,
    Rule,
    Verdict,
    seen,
)
from papers.difference import MEASURED, Difference, Effect, Relation, shown
from papers.results import Measured, MeasuredGroup, Results
from papers.targets import FULL, SMALL
from pipetrain.reporting.seed_statistics import ratio, verdict
from pipetrain.reporting.sweep.columns import column_of


def judge(rules: Sequence[Rule], results: Results, *, superlative: bool = False, best: bool = False) -> Verdict | None:
    """The verdict of the rules whose experiments were run; None if none was.

    Args:
        rules: parts of the claim.
        results: what was measured.
        superlative: True if the claim puts one before all others: it falls with any of its parts.
        best: True if the paper prints the best evaluation of a run in place of the last.
    """
    found = list(dict.fromkeys(answer for rule in rules for answer in _answers(rule, results, best=best)))
    if not found:
        return None
    lines = [answer.line for answer in found]
    asked = dict.fromkeys(name for rule in rules for name in rule.experiments)
    run = {name for answer in found for name in answer.experiments}
    if missing := [name for name in asked if name not in run]:
        lines.append(f"not run: {', '.join(missing)}")
    tried = [answer for answer in found if answer.tested]
    if not tried:
        return Verdict(NOT_TESTED, lines, found)
    return Verdict(_word(tried, len(found), len(asked), superlative=superlative), lines, found)


def _word(tried: Sequence[Answer], parts: int, experiments: int, *, superlative: bool) -> str:
    """What was seen, and the number of the experiments that decide it if not all of them do."""
    holding, refuted = (sum(answer.holds is value for answer in tried) for value in (True, False))
    scale = FULL if all(answer.scale == FULL for answer in tried) else SMALL
    word = seen(holding, refuted, parts, scale, superlative=superlative)
    decided = {name for answer in tried for name in answer.experiments if answer.holds is not None}
    partly = word != UNDECIDED and 0 < len(decided) < experiments
    share = f", {len(decided)} of {experiments} experiments" if partly else ""
    alone = ", parts uncorrected" if word.startswith(SEEN_IN_PART) else ""
    return word + share + alone


def companions(experiment: str, results: Results) -> list[Measured]:
    """Measurements of an experiment and its companions: those at full scale if there are any, else all."""
    names = [name for name in results if name == experiment or name.startswith(f"{experiment}_")]
    scale = max((results[name].scale == FULL for name in names), default=False)
    return [results[name] for name in names if (results[name].scale == FULL) == scale]


def _answers(rule: Rule, results: Results, *, best: bool) -> Iterator[Answer]:
    """Answers of the results to each part of a rule."""
    if isinstance(rule, MeanRatioClaim):
        return _average(rule, results)
    if isinstance(rule, ContrastClaim):
        return _contrast(rule, results)
    return _growth(rule, results) if isinstance(rule, RatioTrendClaim) else _order(rule, results, best=best)


def _order(order: RankingClaim, results: Results, *, best: bool) -> Iterator[Answer]:
    """For each of the other groups, the answer to whether the order holds."""
    there, against = companions(order.experiment, results), companions(order.against or order.experiment, results)
    first, theirs = _groups(there).get(order.first), _groups(against)
    asked = order.metric or _ranked(there[0], best=best) if there else None
    if first is None or asked is None:
        return
    for name in order.others:
        if name not in theirs:
            yield _untested(order.experiment, f"{name}{_of(order)} was not run", there)
    others = [theirs[name] for name in order.others if name in theirs]
    if not others:
        return
    compared = [*there, *against]
    if blind := (
        _blind(order, first, others, asked, there[0].scale)
        or _unlike(compared)
        or _unmet(order.controls, compared, results)
    ):
        yield _untested(order.experiment, blind, there)
        return
    for other in others:
        if metric := _metric(asked, first, other):
            yield from _judged(order, Difference(first, other, metric, order.within, order.floor), there)


def _untested(experiment: str, reason: str, there: Sequence[Measured]) -> Answer:
    """The answer that an experiment cannot give, and why."""
    return Answer((experiment,), None, f"{_where(there[0])}: {reason}", there[0].scale, tested=False, reason=reason)


def _blind(
    order: RankingClaim, first: MeasuredGroup, others: Sequence[MeasuredGroup], asked: str, scale: str
) -> str | None:
    """Why the experiment has nothing to compare, whatever its results."""
    if order.full and scale != FULL:
        return f"{column_of(asked).head} against {', '.join(other.name for other in others)}: needs the full scale"
    if not any(group.completed for group in (first, *others)):
        return f"neither {first.name} nor {', '.join(other.name for other in others)} completed a run"
    if not any(_metric(asked, first, other) for other in others):
        return f"{column_of(asked).head} was not measured, or not kept"
    return None


def _unlike(compared: Sequence[Measured]) -> str | None:
    """Why measurements cannot be compared, whatever their results; None if they can."""
    small = [each for each in compared if each.scale == SMALL]
    if 0 < len(small) < len(compared):
        return f"only the small scale of {_names(small)} was measured"
    outdated = [each for each in compared if each.outdated]
    if 0 < len(outdated) < len(compared):
        return f"only the runs of {_names(outdated)} are from before the small scale was changed"
    return None


def _of(order: RankingClaim) -> str:
    """Names the experiment in which the other groups were measured; empty if it is also the first group's."""
    return f" of {order.against}" if order.against not in (None, order.experiment) else ""


def _names(found: Sequence[Measured]) -> str:
    return " and ".join(dict.fromkeys(each.experiment for each in found))


def _judged(order: RankingClaim, difference: Difference, there: Sequence[Measured]) -> Iterator[Answer]:
    """The answer of two groups, and the one on the factor by which the paper sets them apart."""
    first, other, metric = difference.first, difference.other, difference.metric
    where = f"{_where(there[0])}, {column_of(metric).head}"

    def answer(word: str, *why: str, holds: bool | None = None, tested: bool = True) -> Answer:
        text = f"{where}: {shown(first, metric)} {word} {shown(other, metric)}{_of(order)}"
        text = "; ".join(filter(None, (text, *why)))
        reason = "" if tested else why[-1]
        return Answer((order.experiment,), holds, text, there[0].scale, tested, effect, reason)

    effect = difference.effect(order.relation)
    if order.relation is not Relation.FAILS and difference.untested is not None:
        yield answer("against", difference.untested, tested=False)
        return
    holds = difference.shows(order.relation)
    word, reading = difference.word(order.relation), difference.reading(order.relation)
    separates = any(isinstance(each, Apart) for each in order.controls) or _separates_any(difference, _groups(there))
    if holds and order.relation is Relation.LIKE and not separates:
        none = "no other method is worse either, so the experiment does not separate methods"
        yield answer(word, reading, none, tested=False)
        return
    yield answer(word, reading, holds=holds)
    if holds and order.factor and metric in other.means:
        ratio = difference.ratio
        text = f"{ratio:.2f}X of it (the paper: {order.factor:g}X)"
        yield replace(answer("against", text, holds=ratio >= order.factor), effect=None)


def _contrast(claim: ContrastClaim, results: Results) -> Iterator[Answer]:
    """Answer to whether the first cost is larger than the second over the seeds of both."""
    more, less = (_costs(contrast, claim.metric, results) for contrast in (claim.more, claim.less))
    if not more or not less:
        return
    compared = [each for name in claim.experiments for each in companions(name, results)]
    scale = compared[0].scale
    if unlike := _unlike(compared):
        text = f"{column_of(claim.metric).head}: {unlike}"
        yield Answer(claim.experiments, None, text, scale, tested=False, reason=unlike)
        return
    texts = [
        f"{first} over {other} in {name} {_mean(cost.values())}"
        for (name, first, other), cost in ((claim.more, more), (claim.less, less))
    ]
    found = ratio(more, less)
    held = verdict(found, low=math.nextafter(1.0, 2.0))
    reading = f"the first is {found.middle:.3f} times the second, 95 % {found.low:.3f} to {found.high:.3f}"
    if any(found.infinite):
        reading = f"never reached by {found.infinite[0]} and {found.infinite[1]} of {found.seeds} runs"
    text = f"{column_of(claim.metric).head}, {scale}: {', '.join(texts)}; {reading}"
    # a gain is that of the group that costs less
    (experiment, worse, _), (other, better, _) = claim.more, claim.less
    names = (better, worse) if other == experiment else (other, experiment)
    effect = Effect(*names, claim.metric, None if any(found.infinite) else found, limit=1.0)
    yield Answer(claim.experiments, held.holds, text, scale, effect=effect)


def _mean(costs: Collection[float]) -> str:
    return f"{statistics.geometric_mean(costs):.3f}" if math.inf not in costs else "infinite"


def _costs(contrast: Contrast, metric: str, results: Results) -> dict[Hashable, float]:
    """Seed -> the first group's value over the other's; infinite if its run diverged or never reached the target."""
    groups = _groups(companions(contrast[0], results))
    if not {*contrast[1:]} <= groups.keys():
        return {}
    first, other = (groups[name] for name in contrast[1:])
    values = {
        **dict.fromkeys(first.lost, math.inf),
        **{s: run.get(metric, math.inf) for s, run in first.by_seed.items()},
    }
    return {
        seed: value / other.by_seed[seed][metric]
        for seed, value in values.items()
        if metric in other.by_seed.get(seed, {})
    }


def _unmet(controls: Sequence[Control], compared: Sequence[Measured], results: Results) -> str | None:
    """The first control that an experiment does not meet, or that was not measured like what is compared."""
    found = ((each, _there(each, results)) for each in controls)
    unmet = (
        _unlike([*compared, *there]) or each.unmet(_groups(there)) for each, there in found if not _exempt(each, there)
    )
    return next(filter(None, unmet), None)


def _there(control: Control, results: Results) -> list[Measured]:
    """Measurements of the experiments of a control."""
    names = (control.experiment, control.against) if isinstance(control, Apart) else (control.experiment,)
    return [each for name in names for each in companions(name, results)]


def _exempt(control: Control, there: Sequence[Measured]) -> bool:
    """True if the control is for the data of the small scale, and the experiment was run at full scale."""
    return isinstance(control, Reaches) and control.small and any(each.scale == FULL for each in there)


def _separates_any(difference: Difference, there: Mapping[str, MeasuredGroup]) -> bool:
    """True if the experiment shows some group to be worse; if all learn alike, a single result means nothing."""
    if not difference.of_learning:
        return True
    rest = [group for group in there.values() if group.name not in (difference.first.name, difference.other.name)]
    return not rest or any(replace(difference, first=group).shows(Relation.WORSE) for group in rest)


def _where(measured: Measured) -> str:
    """The experiment, its scale, and the network and data that the small scale has in place of the paper's."""
    changed = ", ".join(filter(None, (measured.network, measured.data)))
    return f"{measured.experiment}, {measured.scale}" + (f" ({changed})" if changed else "")


def _average(rule: MeanRatioClaim, results: Results) -> Iterator[Answer]:
    """Answer to whether the mean ratio is on the claimed side of its reference, and of the paper's factor."""
    there = {name: companions(name, results) for name in rule.experiments}
    ratios = {name: known for name, found in there.items() if (known := _ratio(rule, found))}
    if not ratios:
        return
    scale = FULL if all(there[name][0].scale == FULL for name in ratios) else SMALL
    listed = ", ".join(f"{known:.2f} in {name}" for name, known in ratios.items())
    where = f"{rule.first} over {rule.other}, {column_of(rule.metric).head}, {scale}: {listed}"
    if len(ratios) < 2:
        alone = "one network does not show scatter"
        yield Answer(tuple(ratios), None, f"{where}; {alone}", scale, tested=False, reason=alone)
        return
    found = ratio(ratios, dict.fromkeys(ratios, 1.0))
    mean = f"mean {found.middle:.2f}, 95 % {found.low:.2f} to {found.high:.2f} over {len(ratios)} networks"
    limits = {1 - MEASURED if rule.relation is Relation.LIKE else 1 + MEASURED: f"{where}; {mean}, compared to "}
    if rule.factor:
        limits[rule.factor] = f"{rule.first} over {rule.other} in {', '.join(ratios)}: {mean}, compared to the paper's "
    for limit, text in limits.items():
        against = f"{rule.other} ({limit:g}X)" if limit == rule.factor else rule.other
        effect = Effect(rule.first, against, rule.metric, found, limit=limit)
        yield Answer(tuple(ratios), verdict(found, low=limit).holds, f"{text}{limit:.2f}", scale, effect=effect)


def _growth(growth: RatioTrendClaim, results: Results) -> Iterator[Answer]:
    """Answers to whether the ratio rises from each experiment to the next, of those run at full scale."""
    there = {name: companions(name, results) for name in growth.experiments}
    known = {
        name: ratio for name, found in there.items()
        if found and found[0].scale == FULL and (ratio := _ratio(growth, found)) is not None
    }  # fmt: skip
    for (name, ratio), (larger, more) in pairwise(known.items()):
        text = f"{growth.first} over {growth.other}: {ratio:.2f} in {name}, {more:.2f} in {larger}"
        yield Answer((name, larger), more > ratio, text, FULL)


def _ratio(rule: MeanRatioClaim | RatioTrendClaim, there: Sequence[Measured]) -> float | None:
    first, other = (_groups(there).get(name) for name in (rule.first, rule.other))
    if first is None or other is None:
        return None
    metric = _metric(rule.metric, first, other)
    if metric is None or not (metric in first.means and metric in other.means):
        return None
    return first.means[metric] / other.means[metric]


def _groups(there: Sequence[Measured]) -> Mapping[str, MeasuredGroup]:
    return {group.name: group for each in there for group in each.groups}


def _ranked(measured: Measured, *, best: bool) -> str | None:
    """Metric that the experiment is ranked by, as the paper prints it."""
    return f"best_{measured.metric}" if best and measured.metric else measured.metric


def _metric(asked: str | None, *groups: MeasuredGroup) -> str | None:
    """The column that is asked for, or the measured one in place of a predicted one; None if no group has it."""
    if asked is None:
        return None
    named = (asked, asked.removeprefix("predicted_"))
    completed = [group for group in groups if group.completed] or groups
    return next((name for name in named if any(name in group.means for group in completed)), None)
