"""The runs of a sweep, those that differ only in the seed together."""

import statistics
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pipetrain.engine.errors import ConfigError
from pipetrain.reporting.sweep.compared_run import EPOCH, ComparedRun, is_seed, read
from pipetrain.runner.terminal.text_table import printable, shortened
from pipetrain.runner.tracking.run_directory import RunDirectory, runs_in

if TYPE_CHECKING:
    from pipetrain.reporting.sweep.slowdown import Slowdown

LONGEST_NAME = 36
"""Letters of a name beyond which groups are numbered."""


class CoursePoint(NamedTuple):
    """A point of a group's curve: its place on the axis, and the mean, lowest and highest value over seeds."""

    x: float
    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class SweepGroup:
    """The runs of one configuration under several seeds.

    Attributes:
        name: the settings that distinguish it from the other groups.
        settings: the same, as setting -> value.
    """

    name: str
    runs: Sequence[ComparedRun]
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def method(self) -> str:
        """The method of all its runs."""
        return printable(str(self.runs[0].settings.get("method", "")))

    @property
    def completed(self) -> list[ComparedRun]:
        """The runs that completed."""
        return [run for run in self.runs if run.status == "completed"]

    @property
    def counted(self) -> Sequence[ComparedRun]:
        """The runs whose numbers count: of every seed the newest that completed.

        If none completed, of every seed the newest, as far as it got.
        """
        newest = _newest(self.completed or self.runs)
        return [run for run in self.runs if newest.get(run.seeds) is run]

    @property
    def ended(self) -> dict[Hashable, ComparedRun]:
        """By seed, the newest run that completed or else diverged; runs that were stopped otherwise say nothing."""
        return {**_newest([run for run in self.runs if run.status == "diverged"]), **_newest(self.completed)}

    @property
    def statuses(self) -> Counter[str]:
        """Number of runs by status."""
        return Counter(run.status for run in self.runs)

    @property
    def commits(self) -> set[str]:
        """The commits of the runs that count."""
        return {run.provenance["commit"] for run in self.counted if "commit" in run.provenance}

    @property
    def staleness(self) -> list[int]:
        """Largest forward staleness of each stage in the completed runs that count."""
        counted = self.counted if self.completed else []
        return [max(seen) for seen in zip(*(run.staleness for run in counted), strict=True)]

    def by_stage(self, name: str) -> list[float]:
        """A measurement of each stage, averaged over seeds."""
        found = [run.by_stage[name] for run in self.counted if name in run.by_stage]
        return [statistics.fmean(values) for values in zip(*found, strict=True)]

    def values(self, column: str) -> list[float]:
        """The values of a column in the runs that count."""
        return [run.values[column] for run in self.counted if column in run.values]

    def mean(self, column: str) -> float | None:
        """The mean over seeds."""
        return statistics.fmean(values) if (values := self.values(column)) else None

    def deviation(self, column: str) -> float | None:
        """The sample standard deviation over seeds; None of fewer than two."""
        return statistics.stdev(values) if len(values := self.values(column)) > 1 else None

    def by_seed(self, column: str) -> dict[Hashable, float]:
        """The values of a column in the runs that count, by their seeds."""
        return {run.seeds: run.values[column] for run in self.counted if column in run.values}

    def course(self, name: str, axis: str = EPOCH) -> list[CoursePoint]:
        """A curve along an axis, as far as all runs that count have come; empty if its positions are unknown."""
        runs = [run for run in self.counted if name in run.curves]
        points = [{point.place: point for point in run.curves[name]} for run in runs]
        found = []
        for place in sorted(set.intersection(*map(set, points))) if points else ():
            at = [each[place].at(axis, predicted=run.predicted) for run, each in zip(runs, points, strict=True)]
            known = [x for x in at if x is not None]
            values = [each[place].value for each in points]
            if len(known) == len(at):
                found.append(CoursePoint(statistics.fmean(known), statistics.fmean(values), min(values), max(values)))
        return found


def _newest(runs: Iterable[ComparedRun]) -> dict[Hashable, ComparedRun]:
    return {run.seeds: run for run in sorted(runs, key=lambda run: run.started_at)}


class ComparedGroups(NamedTuple):
    """The groups of the runs that can be read, the column that ranks them, runs that cannot be read, and slowdowns."""

    groups: Sequence[SweepGroup]
    metric: str | None = None
    skipped: Sequence[ComparedRun] = ()
    slowdowns: "Sequence[Slowdown]" = ()


def labels_of(groups: Sequence[SweepGroup], longest: int = LONGEST_NAME) -> list[str]:
    """Labels in tables and figures: names, or, if one is long, numbers with the methods, such as `3 pipeoptim`."""
    if all(len(group.name) <= longest for group in groups):
        return [group.name for group in groups]
    return [f"{number} {shortened(group.method, longest)}".strip() for number, group in enumerate(groups, 1)]


def legend_of(groups: Sequence[SweepGroup], longest: int = LONGEST_NAME) -> list[tuple[str, ...]]:
    """Columns of the settings that distinguish the groups, each with its head first; empty if names do so."""
    names = [group.name for group in groups]
    if labels_of(groups, longest) == names:
        return []
    numbers = ("", *map(str, range(1, len(names) + 1)))
    if not all(group.settings for group in groups):
        return [numbers, ("run", *names)]
    settings = dict.fromkeys(setting for group in groups for setting in group.settings)
    return [numbers, *((each, *(group.settings.get(each, "-") for group in groups)) for each in settings)]


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
    kinds: dict[object, list[ComparedRun]] = {}
    for run in runs:
        if run.status != "damaged":
            known = {**run.facts, **{name: run.provenance[name] for name in by if name in run.provenance}}
            kinds.setdefault(compared_settings(run), []).append(replace(run, facts=known))
    groups = [group for kind in kinds.values() for group in _split(kind)]
    best_known = [max(group, key=lambda run: len(run.facts)) for group in groups]
    named = zip(distinct_names(best_known), groups, distinguishing_settings(best_known), strict=True)
    damaged = [run for run in runs if run.status == "damaged"]
    return ComparedGroups([SweepGroup(*each) for each in named], skipped=damaged)


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
        possible = same or [
            group
            for group in groups
            if all(run.facts.get(name, value) == value for name, value in group[0].facts.items())
        ]
        if len(possible) == 1:
            possible[0].append(run)
        else:
            groups.append([run])
    order = {id(run): number for number, run in enumerate(kind)}
    return [sorted(group, key=lambda run: order[id(run)]) for group in groups]


_NOT_COMPARED = (
    "resume", "debug", "trace", "log", "callbacks", "checkpoint", "launch", "sweep", "hydra", "partition.path",
)  # fmt: skip
"""Settings, and sections of settings, that do not make runs different; of a plan in a file, its content does."""
_METHOD = "method"
_DRAINS = "checkpoint.every_steps"
"""A setting of checkpoints that changes results: an asynchronous pipeline drains for each."""
_STOPS, _PATIENCE = "checkpoint.metric", "train.patience"
"""The metric by which a run ends early, if it is to."""


def compared_settings(run: ComparedRun) -> tuple[tuple[str, str], ...]:
    """Equal for runs whose settings differ only in seeds."""
    return tuple(sorted((name, str(value)) for name, value in run.settings.items() if _is_compared(name, run)))


def _is_compared(setting: str, run: ComparedRun) -> bool:
    named = {setting, setting.partition(".")[0]}
    counts = setting == _DRAINS or (setting == _STOPS and run.settings.get(_PATIENCE) is not None)
    return counts or not (is_seed(setting) or named & {*_NOT_COMPARED})


def distinct_names(runs: Sequence[ComparedRun]) -> list[str]:
    """A name for each of some runs that all differ, of its `distinguishing_settings`; its method if there are none."""
    return [
        " ".join(value if setting == _METHOD else f"{setting}={value}" for setting, value in settings.items())
        or _text(run.settings.get(_METHOD, run.path))
        for run, settings in zip(runs, distinguishing_settings(runs), strict=True)
    ]


def distinguishing_settings(runs: Sequence[ComparedRun]) -> list[dict[str, str]]:
    """Setting -> value for each of some runs that all differ, the method first.

    These are the settings that were given on the command line of any of them and differ, and as many others as are
    needed to distinguish the runs.
    """
    asked = {name for run in runs for name in run.asked}
    # `train.target` asks for all of `train.target.…`, but `method`, itself a setting, not for `method.…`
    sections = tuple(f"{name}." for name in asked - {name for run in runs for name in run.settings})
    given = [name for name in _differing(runs) if name in asked or name.startswith(sections)]
    found = [_shortly_named(run, given) for run in runs]
    for repeated in [each for number, each in enumerate(found) if each in found[:number]]:
        same = [index for index, each in enumerate(found) if each == repeated]
        more = _telling_apart([runs[index] for index in same])
        for index in same:
            found[index] = _shortly_named(runs[index], [*given, *(name for name in more if name not in given)])
    return found


def _telling_apart(runs: Sequence[ComparedRun]) -> list[str]:
    """As few settings or facts as distinguish the runs; choices of a group rather than the settings they imply."""
    left = sorted(_differing(runs), key=lambda name: (any(name in run.facts for run in runs), "." in name))
    chosen: list[str] = []

    def kinds(names: Sequence[str]) -> int:
        return len({tuple(str(_value(run, name)) for name in names) for run in runs})

    while left:
        best = max(left, key=lambda name: kinds([*chosen, name]))
        if kinds([*chosen, best]) == kinds(chosen):
            break
        chosen.append(best)
        left.remove(best)
    return chosen


def _value(run: ComparedRun, name: str) -> Any:
    return run.facts.get(name, run.settings.get(name))


def _differing(runs: Sequence[ComparedRun]) -> list[str]:
    """The settings that differ, the method first."""
    settings = sorted({name for run in runs for name in (*run.settings, *run.facts) if _is_compared(name, run)})
    differing = [name for name in settings if len({str(_value(run, name)) for run in runs}) > 1]
    return sorted(differing, key=lambda name: name != _METHOD)


def _shortly_named(run: ComparedRun, settings: Sequence[str]) -> dict[str, str]:
    """The values of the settings that the run has, by the last part of their names if that is unambiguous."""
    last = [setting.rpartition(".")[2] for setting in settings]
    return {
        short if last.count(short) == 1 else setting: _text(value)
        for setting, short in zip(settings, last, strict=True)
        if (value := _value(run, setting)) is not None
    }


def _text(value: Any) -> str:
    return printable(str(value).lower() if isinstance(value, bool) else str(value))
