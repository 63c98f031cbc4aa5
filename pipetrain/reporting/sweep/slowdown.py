"""Slowdowns of the rows of a sweep: steps, samples, tokens and time to a baseline's loss, over the baseline's own."""

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
AT_FIRST = "some runs had reached it at their first value, so their steps are upper bounds"
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
        unsteady: True if times are left out because those of a step differ too much between seeds.
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
        rows: of every group; None for groups without a run that ended, or without such values.
    """

    baseline: str
    name: str
    target: float
    share: float | None
    width: float | None
    rows: Sequence[RowSlowdown | None]

    @property
    def goal(self) -> str:
        """What is to be reached."""
        names = {TRAIN_LOSS: "training loss", _EVAL_LOSS: "evaluation loss"}
        return f"{names.get(self.name, self.name)} {self.target:.4g}"

    @property
    def heading(self) -> str:
        """What is to be reached, and whose value that is."""
        whose = "" if self.share is None else f", that of {self.baseline} after {self.share:.0%} of its steps"
        return f"Slowdown to {self.goal}{whose}"


def baseline_of(groups: Sequence[SweepGroup], name: str) -> int:
    """Number of the group that a name is of: its label, or settings such as `gpipe` or `method=gpipe stages=4`.

    Raises:
        ConfigError: no group has them, or several have.
    """
    labels = labels_of(groups)
    exact = [number for number, group in enumerate(groups) if name in (group.name, labels[number])]
    found = exact or [number for number, group in enumerate(groups) if all(_has(group, word) for word in name.split())]
    if len(found) == 1:
        return found[0]
    which = f"{len(found)} rows have it: " if found else "no row has it; rows: "
    listed = ", ".join(groups[number].name for number in found or range(len(groups)))
    raise ConfigError(f"--baseline {name}: {which}{listed}")


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
        target: values to reach by name; of the others that of the baseline is.
        share: of the baseline's steps, after which its value is the target.

    Raises:
        ConfigError: no run of the baseline has completed, or it has neither training losses nor such evaluations.
    """
    own = groups[baseline]
    if not own.completed:
        raise ConfigError(f"--baseline {own.name}: none of its runs has completed")
    evaluated = [name for name in target if name != TRAIN_LOSS] or [_EVAL_LOSS]
    found = [_slowdown(name, groups, baseline, target.get(name), share) for name in (TRAIN_LOSS, *evaluated)]
    if not any(found):
        raise ConfigError(
            f"--baseline {own.name}: it recorded no loss, or none that has fallen; log.every_steps and "
            "eval say when runs do, and --target sets a loss"
        )
    return [each for each in found if each]


def _slowdown(
    name: str, groups: Sequence[SweepGroup], baseline: int, target: float | None, share: float
) -> Slowdown | None:
    """None if the baseline has no such values, or has not improved after that share of its steps."""
    own = [run for run in groups[baseline].ended.values() if run.status == "completed"]
    recorded = [run.losses for run in own if run.losses.steps] if name == TRAIN_LOSS else []
    width = smoothing_of(recorded) if recorded else None
    sign = -1.0 if column_of(name, groups).higher else 1.0
    known = [curve for run in own if (curve := _curve(run, name, sign, width)).steps]
    if not known:
        return None
    given = target is not None
    if target is None:
        target = sign * target_of(known, share)
        if width is not None and target >= statistics.fmean(curve.losses[0] for curve in known):
            return None  # the loss has not fallen by then, as after a warm-up that is too fast: any run has it at once
    taken = [_amounts(group, name, sign, width, sign * target) for group in groups]
    first = [_at_first(group, name, sign, width, sign * target) for group in groups]
    rows = [
        _over(amounts, taken[baseline], seeds, unsteady=not _steady(group)) if amounts else None
        for amounts, seeds, group in zip(taken, first, groups, strict=True)
    ]
    return Slowdown(groups[baseline].name, name, target, None if given else share, width, rows)


def _curve(run: ComparedRun, name: str, sign: float, width: float | None) -> LossCurve:
    """The curve as one that falls as the run improves."""
    if width is not None:
        curve = trailing_mean(run.losses, width)
        whole = bisect_left(curve.steps, width)  # before, a single loss may be low by chance
        return LossCurve(curve.steps[whole:] or curve.steps[-1:], curve.losses[whole:] or curve.losses[-1:])
    points = [point for point in run.curves.get(name, ()) if point.step]
    return LossCurve([float(point.step or 0) for point in points], [sign * point.value for point in points])


def _amounts(group: SweepGroup, name: str, sign: float, width: float | None, target: float) -> dict[str, Values]:
    """Amount -> its value by seed; only amounts that are known of all runs."""
    steps, runs = {}, group.ended
    for seed, run in runs.items():
        curve = _curve(run, name, sign, width)
        if run.status == "diverged":
            steps[seed] = math.inf
        elif curve.steps:
            steps[seed] = steps_to_loss(curve, target)
    if not steps:
        return {}
    reached = [runs[seed].per_step for seed in steps if math.isfinite(steps[seed])]
    reached = reached or [runs[seed].per_step for seed in steps]
    known = [amount for amount in AMOUNTS[1:] if all(amount in each for each in reached)]
    if SECONDS in known and not _steady(group):
        known.remove(SECONDS)
    found = {amount: {seed: runs[seed].amount(amount, steps[seed]) for seed in steps} for amount in known}
    return {STEPS: steps, **found}


def _steady(group: SweepGroup) -> bool:
    """True if the time of a step is about the same under all seeds, as it is not on a machine that does other work."""
    times = [run.per_step[SECONDS] for run in group.ended.values() if SECONDS in run.per_step]
    return not times or max(times) <= _STEADY * min(times)


def _at_first(group: SweepGroup, name: str, sign: float, width: float | None, target: float) -> list[Any]:
    """Seeds of the runs that had reached the target at the first value of their curves."""
    curves = {seed: _curve(run, name, sign, width) for seed, run in group.ended.items() if run.status == "completed"}
    return [seed for seed, curve in curves.items() if curve.losses and curve.losses[0] <= target]


def _over(
    amounts: Mapping[str, Values], baseline: Mapping[str, Values], at_first: Collection[Any], *, unsteady: bool
) -> RowSlowdown:
    known = {amount: values for amount, values in amounts.items() if amount in baseline}
    ratios = {amount: slowdown(values, baseline[amount]) for amount, values in known.items()}
    return RowSlowdown(known, ratios, at_first, unsteady)


def table_of(found: Slowdown, groups: Sequence[SweepGroup]) -> list[tuple[str, ...]]:
    """Columns of a table, each with its head first; ratios of samples and tokens only where those of steps differ."""
    columns = [("", *labels_of(groups))]
    for amount in AMOUNTS:
        if not any(row and amount in row.over_baseline for row in found.rows):
            continue
        pairs = list(zip(groups, found.rows, strict=True))
        columns.append((_HEADS[amount], *(_amount(row, amount, group) for group, row in pairs)))
        if amount in (STEPS, SECONDS) or any(_differs(row, amount) for row in found.rows):
            ratios = (ratio_cell(row.over_baseline.get(amount) if row else None) for row in found.rows)
            columns.append((f"slowdown in {_NOUNS[amount]}", *ratios))
    return columns


def _amount(row: RowSlowdown | None, amount: str, group: SweepGroup) -> str:
    """Mean and standard deviation over the seeds that reached the target, and how many these are if not all did."""
    values = row.amounts.get(amount, {}) if row else {}
    reached = [value for value in values.values() if math.isfinite(value)]
    if not reached:
        return "never" if values else "-"
    spread = f" ± {rate_of(statistics.stdev(reached))}" if len(reached) > 1 else ""
    some = f" ({len(reached)} of {len(values)})" if len(reached) < len(values) else ""
    predicted = "~" if amount == SECONDS and group.ended and all(run.predicted for run in group.ended.values()) else ""
    return f"{predicted}{rate_of(statistics.fmean(reached))}{spread}{some}"


def ratio_cell(found: Interval | None, digits: int = 2) -> str:
    """The slowdown with its interval; a dash also where runs of the baseline did not reach the target."""
    if found is None or found.infinite[1]:
        return "-"
    if found.infinite[0]:
        return "infinite"
    middle, low, high = (f"{value:.{digits}f}" for value in (found.middle, found.low, found.high))
    return f"{middle} ({low} to {high})" if found.seeds > 1 and found.low < found.high else middle


def _differs(row: RowSlowdown | None, amount: str) -> bool:
    middles = [row.over_baseline[each].middle for each in (amount, STEPS) if each in row.over_baseline] if row else []
    return len(set(middles)) > 1 and not math.isclose(*middles, rel_tol=_EQUAL) and not any(map(math.isnan, middles))


def notes_on(found: Sequence[Slowdown]) -> list[str]:
    """Explanations of the columns."""
    if not found:
        return []
    smoothed = [f"; training losses are means over {each.width:.3g} steps" for each in found if each.width]
    bounds = [f"{each.goal}: {AT_FIRST}" for each in found if any(row and row.at_first for row in each.rows)]
    unsteady = any(row and row.unsteady for each in found for row in each.rows)
    busy = f"no time where that of a step differs by more than {_STEADY:g} times between seeds, as on a busy machine"
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
        if row
    ]
    named = {"baseline": found.baseline, "of": found.name, "target": found.target, "smoothed_over_steps": found.width}
    return {**named, "rows": rows}


def _content(found: Interval | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {"mean": found.middle, "low": found.low, "high": found.high, "how": found.how, "infinite": found.infinite[0]}
