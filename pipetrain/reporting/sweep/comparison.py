"""Runs side by side: read and grouped by configuration, ranked, and with slowdowns against a baseline."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from pipetrain.engine.errors import ConfigError
from pipetrain.reporting.sweep.columns import column_of, metric_of
from pipetrain.reporting.sweep.compared_run import TRAIN_LOSS, ComparedRun
from pipetrain.reporting.sweep.fastest import sentence_on
from pipetrain.reporting.sweep.groups import SweepGroup, compared_settings, distinct_names, distinguishing_settings
from pipetrain.reporting.sweep.run_reader import read
from pipetrain.reporting.sweep.slowdown import Slowdown, slowdowns
from pipetrain.runner.tracking.run_directory import RunDirectory, runs_in
from pipetrain.runner.tracking.throughput import ALL_THROUGHPUTS


class ComparedGroups(NamedTuple):
    """Groups of runs as a report shows them.

    Attributes:
        groups: the rows.
        metric: the column that ranks them; None if they have another order.
        evaluated: the metric of evaluations that is shown where no column ranks them; None for a usual one.
        skipped: runs that cannot be read.
        slowdowns: against a baseline, to one or more targets.
        heads: sentences that come first.
        remarks: further notes.
    """

    groups: Sequence[SweepGroup]
    metric: str | None = None
    evaluated: str | None = None
    skipped: Sequence[ComparedRun] = ()
    slowdowns: Sequence[Slowdown] = ()
    heads: Sequence[str] = ()
    remarks: Sequence[str] = ()

    @property
    def shown(self) -> str | None:
        """The column whose values and courses are shown first; None for a usual one."""
        return self.metric or self.evaluated


def collect(
    folders: Sequence[Path],
    target: Mapping[str, float],
    others: Sequence[ComparedRun] = (),
    by: Sequence[str] = (),
) -> ComparedGroups:
    """The groups of all runs under some folders: runs of a group differ in nothing that changes results but the seed.

    Args:
        folders: of sweeps or runs.
        target: metrics whose time is asked for.
        others: further runs, whose directories are not read.
        by: what else has to be the same: `commit`, `host`.

    Raises:
        ConfigError: there are no runs.
    """
    directories = {run.path.resolve(): run for folder in folders for run in runs_in(folder)}
    for run in others:
        directories.pop(run.path.resolve(), None)
    runs = [*_read_all([*directories.values()], target), *others]
    if not runs:
        raise ConfigError(f"{' '.join(map(str, folders))}: no runs here; name the folder of a sweep or run")
    damaged = [run for run in runs if run.status == "damaged"]
    sound = [_with_facts(run, by) for run in runs if run.status != "damaged"]
    return ComparedGroups(_grouped(sound), skipped=damaged)


def _with_facts(run: ComparedRun, by: Sequence[str]) -> ComparedRun:
    """The run with its commit or host among its facts, which then distinguish it."""
    return replace(run, facts={**run.facts, **{name: run.provenance[name] for name in by if name in run.provenance}})


def _grouped(runs: Sequence[ComparedRun]) -> list[SweepGroup]:
    kinds: dict[object, list[ComparedRun]] = {}
    for run in runs:
        kinds.setdefault(compared_settings(run), []).append(run)
    groups = [group for kind in kinds.values() for group in _split(kind)]
    best_known = [max(group, key=lambda run: len(run.facts)) for group in groups]
    named = zip(distinct_names(best_known), groups, distinguishing_settings(best_known), strict=True)
    return [SweepGroup(*each) for each in named]


def _read_all(directories: Sequence[RunDirectory], target: Mapping[str, float]) -> list[ComparedRun]:
    """The runs; only summaries say which metrics fall as a model improves, so runs without one are read after them."""
    runs = [read(directory, target) for directory in directories]
    lower = frozenset[str]().union(*(run.lower_is_better for run in runs))
    unended = ("running", "unfinished")
    return [
        read(directory, target, lower) if run.status in unended else run
        for directory, run in zip(directories, runs, strict=True)
    ]


def _split(kind: Sequence[ComparedRun]) -> list[list[ComparedRun]]:
    """Splits runs with the same settings into groups that differ in the seed alone.

    A run of which less is known, such as one that was killed before it had a plan, joins a group if no fact known of
    both differs and there is only one such group.
    """
    groups: list[list[ComparedRun]] = []
    for run in sorted(kind, key=lambda run: -len(run.facts)):
        same = [group for group in groups if group[0].facts == run.facts]
        possible = same or [group for group in groups if _agree(group[0].facts, run.facts)]
        if len(possible) == 1:
            possible[0].append(run)
        else:
            groups.append([run])
    order = {id(run): number for number, run in enumerate(kind)}
    return [sorted(group, key=lambda run: order[id(run)]) for group in groups]


def _agree(facts: Mapping[str, str], others: Mapping[str, str]) -> bool:
    """True if no fact that both have differs."""
    return all(others.get(name, value) == value for name, value in facts.items())


def ranked(compared: ComparedGroups, metric: str | None) -> ComparedGroups:
    """The groups, best first and those without a completed run last, by the metric or, if None, a usual one.

    A group in which some run has no finite value of the metric, or did not reach the target, ranks below complete ones.

    Raises:
        ConfigError: no run has `metric`.
    """
    groups = compared.groups
    available = sorted({name for group in groups for run in group.runs for name in run.values})
    if metric is not None and metric not in available:
        raise ConfigError(f"--metric {metric}: no run has it; available: {', '.join(available) or 'none'}")
    chosen = metric or metric_of(groups, None)

    def rank(group: SweepGroup) -> tuple[bool, bool, float]:
        mean = group.mean(chosen) if chosen else None
        if chosen is None or mean is None:
            return not group.completed, True, math.inf
        missing = len(group.values(chosen)) < len(group.counted)
        return not group.completed, missing, -mean if column_of(chosen, groups).higher else mean

    return compared._replace(groups=sorted(groups, key=rank), metric=chosen)


def with_slowdowns(compared: ComparedGroups, baseline: int, target: Mapping[str, float]) -> ComparedGroups:
    """The same with slowdowns, and for each target a sentence that says which row reaches it first.

    Raises:
        ConfigError: as `slowdowns` does.
    """
    found = slowdowns(compared.groups, baseline, target)
    heads = [sentence_on(each, compared.groups) for each in found]
    return compared._replace(slowdowns=found, heads=heads)


def check_target(groups: Sequence[SweepGroup], target: Mapping[str, float]) -> None:
    """Checks that some run was evaluated by the metrics of the target, if any was evaluated at all.

    Raises:
        ConfigError: no run has one of the metrics.
    """
    available = sorted({name for group in groups for run in group.runs for name in (*run.curves, *run.final)})
    metrics = [name for name in available if name not in (*ALL_THROUGHPUTS, TRAIN_LOSS)]
    for name, value in target.items():
        if metrics and name not in metrics:
            raise ConfigError(f"--target {name}={value:g}: no run has it; available: {', '.join(metrics)}")


def target_of(words: Sequence[str], *, slowdown: bool = False) -> Mapping[str, float]:
    """The target of words such as `top1=80`; the training loss may be one for a slowdown alone.

    Raises:
        ConfigError: one is not of that form.
    """
    target = {}
    for word in words:
        metric, _, value = word.partition("=")
        if metric == TRAIN_LOSS and not slowdown:
            raise ConfigError(f"--target {word}: is a target of slowdowns; name a --baseline")
        try:
            target[metric] = float(value)
        except ValueError:
            raise ConfigError(f"--target {word}: must be a metric and a number, such as top1=80") from None
    return target
