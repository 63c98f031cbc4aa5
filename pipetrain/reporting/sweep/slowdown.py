"""Slowdowns: steps, samples, tokens and time of each row to a target, over those of a baseline."""

import math
import statistics
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipetrain.engine.errors import ConfigError
from pipetrain.reporting.seed_statistics import Interval, Values
from pipetrain.reporting.steps_to_loss import (
    SHARE,
    LossCurve,
    slowdown,
    smoothing_of,
    steps_to_loss,
    target_of,
    trailing_mean,
)
from pipetrain.reporting.sweep.columns import column_of
from pipetrain.reporting.sweep.compared_run import TRAIN_LOSS, ComparedRun
from pipetrain.reporting.sweep.groups import SweepGroup, labels_of
from pipetrain.runner.terminal.text_table import rate_of

_EVAL_LOSS = "loss"
STEPS, SAMPLES, TOKENS, SECONDS = "steps", "samples", "tokens", "seconds"
AMOUNTS = (STEPS, SAMPLES, TOKENS, SECONDS)
"""What it takes to reach a loss; seconds are those predicted for the pipeline where it is simulated."""
_HEADS = {STEPS: "steps", SAMPLES: "samples", TOKENS: "tokens", SECONDS: "time, s"}
_NOUNS = {**_HEADS, SECONDS: "time"}
_AT_FIRST = "some runs had reached it at their first value, so their steps are upper bounds"
_EQUAL = 1e-3
"""Relative difference up to which two slowdowns are one."""
_STEADY = 1.5
"""Largest ratio of the times of a step under two seeds of a row at which they say something of the row."""


@dataclass(frozen=True)
class RowSlowdown:
    """What a row takes to the target.

    Attributes:
        amounts: `steps` and the other amounts, as far as known -> value by seed; infinite where the run diverged, or
            ended before the target.
        over_baseline: the same -> ratio to the baseline's.
        at_first: seeds that had reached it at the first value of their curves, so that their amounts are upper bounds.
        unsteady: True if times are left out because step times differ too much between seeds.
    """

    amounts: Mapping[str, Values]
    over_baseline: Mapping[str, Interval]
    at_first: Collection[Any] = ()
    unsteady: bool = False


@dataclass(frozen=True)
class Slowdown:
    """Slowdowns to one target.

    Attributes:
        baseline: name of its row.
        name: `train_loss` or a metric of evaluations.
        target: the value to reach.
        share: of the baseline's steps, after which its mean is the target; None if the user gave the target.
        width: number of steps that training losses are averaged over; None for evaluations.
        rows: of every group; without amounts for groups without a run that ended, or without such values.
    """

    baseline: str
    name: str
    target: float
    share: float | None
    width: float | None
    rows: Sequence[RowSlowdown]

    @property
    def goal(self) -> str:
        """The target."""
        names = {TRAIN_LOSS: "training loss", _EVAL_LOSS: "evaluation loss"}
        return f"{names.get(self.name, self.name)} {self.target:.4g}"

    @property
    def heading(self) -> str:
        """The target, and the row that sets it."""
        whose = "" if self.share is None else f", that of {self.baseline} after {self.share:.0%} of its steps"
        return f"Slowdown to {self.goal}{whose}"


def baseline_of(groups: Sequence[SweepGroup], name: str) -> int:
    """Number of the group that a name is of: its label, or settings such as `gpipe` or `method=gpipe stages=4`.

    Raises:
        ConfigError: no group has them, or several have.
    """
    labels = labels_of(groups)
    exact = [number for number, group in enumerate(groups) if name in (group.name, labels[number])]
    found = exact or [number for number, group in enumerate(groups) if _has_all(group, name.split())]
    if len(found) == 1:
        return found[0]
    which = f"{len(found)} rows have it: " if found else "no row has it; rows: "
    listed = ", ".join(groups[number].name for number in found or range(len(groups)))
    raise ConfigError(f"--baseline {name}: {which}{listed}")


def _has_all(group: SweepGroup, words: Sequence[str]) -> bool:
    return all(_has(group, word) for word in words)


def _has(group: SweepGroup, word: str) -> bool:
    setting, _, value = word.rpartition("=")
    settings = group.runs[0].settings if setting else {}
    texts = {str(each).lower() for name, each in settings.items() if f".{name}".endswith(f".{setting}")}
    return value.lower() in texts if setting else value == group.method


def slowdowns(
    groups: Sequence[SweepGroup], baseline: int, target: Mapping[str, float], share: float = SHARE
) -> list[Slowdown]:
    """The slowdowns to the training loss, and to the evaluation loss or the metrics of the target.

    Args:
        groups: the rows.
        baseline: number of the baseline's row.
        target: name -> value to reach; the baseline's value for any name that it lacks.
        share: of the baseline's steps, after which its value is the target.

    Raises:
        ConfigError: no run of the baseline has completed, or it has neither training losses nor such evaluations.
    """
    own = groups[baseline]
    if not own.completed:
        raise ConfigError(f"--baseline {own.name}: none of its runs has completed")
    evaluated = [name for name in target if name != TRAIN_LOSS] or [_EVAL_LOSS]
    found = [slowdown_to(groups, baseline, name, target.get(name), share) for name in (TRAIN_LOSS, *evaluated)]
    if not any(found):
        raise ConfigError(
            f"--baseline {own.name}: it recorded no loss, or none that has fallen; log.every_steps and "
            "eval say when runs do, and --target sets a loss"
        )
    return [each for each in found if each]


@dataclass(frozen=True)
class _Quantity:
    """A curve that moves towards a target.

    Attributes:
        name: `train_loss` or a metric of evaluations.
        sign: -1 if it rises as a run improves, else 1.
        width: number of steps that training losses are averaged over; None for evaluations.
    """

    name: str
    sign: float
    width: float | None

    def curve(self, run: ComparedRun) -> LossCurve:
        """The curve as one that falls as the run improves."""
        if self.width is not None:
            curve = trailing_mean(run.losses, self.width)
            whole = bisect_left(curve.steps, self.width)  # before, a single loss may be low by chance
            return LossCurve(curve.steps[whole:] or curve.steps[-1:], curve.losses[whole:] or curve.losses[-1:])
        points = [point for point in run.curves.get(self.name, ()) if point.step]
        return LossCurve([float(point.step or 0) for point in points], [self.sign * point.value for point in points])

    def steps(self, run: ComparedRun, target: float) -> float | None:
        """Steps to the target on that curve: infinite if the run diverged; None if it has no values."""
        if run.status == "diverged":
            return math.inf
        curve = self.curve(run)
        return steps_to_loss(curve, target) if curve.steps else None

    def begins_at(self, run: ComparedRun, target: float) -> bool:
        """True if a completed run had reached the target at the first value of its curve."""
        losses = self.curve(run).losses if run.status == "completed" else ()
        return bool(losses) and losses[0] <= target


def slowdown_to(
    groups: Sequence[SweepGroup], baseline: int, name: str, target: float | None = None, share: float = SHARE
) -> Slowdown | None:
    """The slowdown to a value of `train_loss` or a metric; see `slowdowns`.

    None if the baseline has no such values, or sets the target and has not improved after that share of its steps.
    """
    own = [run for run in groups[baseline].ended.values() if run.status == "completed"]
    recorded = [run.losses for run in own if run.losses.steps] if name == TRAIN_LOSS else []
    sign = -1.0 if column_of(name, groups).higher else 1.0
    quantity = _Quantity(name, sign, smoothing_of(recorded) if recorded else None)
    known = [curve for run in own if (curve := quantity.curve(run)).steps]
    if not known:
        return None
    goal = target_of(known, share) if target is None else sign * target
    if target is None and quantity.width is not None and goal >= statistics.fmean(each.losses[0] for each in known):
        return None  # the loss has not fallen by then, as after a warm-up that is too fast: any run has it at once
    taken = [_amounts(group, quantity, goal) for group in groups]
    rows = [_row(group, quantity, goal, each, taken[baseline]) for group, each in zip(groups, taken, strict=True)]
    return Slowdown(groups[baseline].name, name, sign * goal, share if target is None else None, quantity.width, rows)


def _amounts(group: SweepGroup, quantity: _Quantity, target: float) -> dict[str, Values]:
    """Amount -> its value by seed; only amounts that are known of all runs."""
    runs = group.ended
    steps = {seed: taken for seed, run in runs.items() if (taken := quantity.steps(run, target)) is not None}
    if not steps:
        return {}
    reached = [seed for seed, taken in steps.items() if math.isfinite(taken)]
    known = {STEPS}.union(set(AMOUNTS).intersection(*(runs[seed].per_step for seed in reached or steps)))
    if not _steady(group):
        known.discard(SECONDS)
    shown = [amount for amount in AMOUNTS if amount in known]
    return {amount: {seed: runs[seed].amount(amount, taken) for seed, taken in steps.items()} for amount in shown}


def _row(
    group: SweepGroup,
    quantity: _Quantity,
    target: float,
    amounts: Mapping[str, Values],
    baseline: Mapping[str, Values],
) -> RowSlowdown:
    if not amounts:
        return RowSlowdown({}, {})
    known = {amount: values for amount, values in amounts.items() if amount in baseline}
    ratios = {amount: slowdown(values, baseline[amount]) for amount, values in known.items()}
    early = [seed for seed, run in group.ended.items() if quantity.begins_at(run, target)]
    return RowSlowdown(known, ratios, early, unsteady=not _steady(group))


def _steady(group: SweepGroup) -> bool:
    """True if the time of a step is about the same under all seeds, as it is not on a machine that does other work."""
    times = [run.per_step[SECONDS] for run in group.ended.values() if SECONDS in run.per_step]
    return not times or max(times) <= _STEADY * min(times)


def table_of(found: Slowdown, groups: Sequence[SweepGroup]) -> list[tuple[str, ...]]:
    """Columns of a table, each with its head first; samples and tokens have ratios only where these differ."""
    columns = [("", *labels_of(groups))]
    rows = found.rows
    for amount in AMOUNTS:
        ratios = [row.over_baseline.get(amount) for row in rows]
        if any(ratios):
            columns.append((_HEADS[amount], *map(_amount, rows, [amount] * len(rows), groups)))
        if any(ratios) and (amount in (STEPS, SECONDS) or any(_differs(row, amount) for row in rows)):
            columns.append((f"slowdown in {_NOUNS[amount]}", *map(ratio_cell, ratios)))
    return columns


def _amount(row: RowSlowdown, amount: str, group: SweepGroup) -> str:
    """Mean and standard deviation over the seeds that reached the target, and how many these are if not all did."""
    values = row.amounts.get(amount, {})
    reached = [value for value in values.values() if math.isfinite(value)]
    if not reached:
        return "never" if values else "-"
    spread = f" ± {rate_of(statistics.stdev(reached))}" if len(reached) > 1 else ""
    some = f" ({len(reached)} of {len(values)})" if len(reached) < len(values) else ""
    predicted = "~" if amount == SECONDS and _is_predicted(group) else ""
    return f"{predicted}{rate_of(statistics.fmean(reached))}{spread}{some}"


def _is_predicted(group: SweepGroup) -> bool:
    """True if the times of its steps are predicted."""
    return bool(group.ended) and all(run.predicted for run in group.ended.values())


def ratio_cell(found: Interval | None, digits: int = 2) -> str:
    """The slowdown with its interval; a dash also where runs of the baseline did not reach the target."""
    if found is None or found.infinite[1]:
        return "-"
    if found.infinite[0]:
        return "infinite"
    middle, low, high = (f"{value:.{digits}f}" for value in (found.middle, found.low, found.high))
    return f"{middle} ({low} to {high})" if found.seeds > 1 and found.low < found.high else middle


def _differs(row: RowSlowdown, amount: str) -> bool:
    middles = [row.over_baseline[each].middle for each in (amount, STEPS) if each in row.over_baseline]
    return len(set(middles)) > 1 and not math.isclose(*middles, rel_tol=_EQUAL) and not any(map(math.isnan, middles))


def notes_on(found: Sequence[Slowdown]) -> list[str]:
    """Explanations of the columns."""
    if not found:
        return []
    whole = [math.ceil(round(each.width, 6)) for each in found if each.width]
    smoothed = [f"; training losses are means over {steps:,} steps" for steps in whole if steps > 1]
    bounds = [f"{each.goal}: {_AT_FIRST}" for each in found if any(row.at_first for row in each.rows)]
    unsteady = any(row.unsteady for each in found for row in each.rows)
    busy = (
        f"no time where the time of a step differs by more than {_STEADY:g} times between seeds, as on a busy machine"
    )
    return [
        *bounds,
        *([busy] if unsteady else []),
        f"slowdown: over {found[0].baseline}, the geometric mean over seeds, with its 95 % confidence interval (t and "
        "bootstrap, seed by seed where both rows have the same); infinite: a run diverged, or ended before it got there"
        f"{''.join(smoothed)}",
    ]


def as_content(found: Slowdown, groups: Sequence[SweepGroup]) -> dict[str, Any]:
    """All of it for JSON, where infinite numbers become null."""
    rows = [
        {
            "name": group.name,
            **{
                amount: {
                    "by_run": [*values.values()],
                    "reached": sum(map(math.isfinite, values.values())),
                    "slowdown": _content(row.over_baseline.get(amount)),
                }
                for amount, values in row.amounts.items()
            },
        }
        for group, row in zip(groups, found.rows, strict=True)
        if row.amounts
    ]
    named = {"baseline": found.baseline, "of": found.name, "target": found.target, "smoothed_over_steps": found.width}
    return {**named, "rows": rows}


def _content(found: Interval | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {"mean": found.middle, "low": found.low, "high": found.high, "how": found.how, "infinite": found.infinite[0]}
