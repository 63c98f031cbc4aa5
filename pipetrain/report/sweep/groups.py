"""The runs of a sweep, those that differ only in the seed together."""

import statistics
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from pipetrain.errors import ConfigError
from pipetrain.report.sweep.compared_run import EPOCH, ComparedRun, is_seed, read
from pipetrain.report.text_table import printable, shortened
from pipetrain.tracking.run_directory import runs_in

LONGEST_NAME = 36
"""Letters of a name beyond which groups are numbered."""


class CoursePoint(NamedTuple):
    """A point of the course of a group: its place on the axis, and the mean, lowest and highest value over seeds."""

    x: float
    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class SweepGroup:
    """The runs of one configuration under several seeds.

    Attributes:
        name: what sets it apart from the other groups.
        runs: all of them.
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

        Where none completed, of every seed the newest, as far as it got.
        """
        newest: dict[object, ComparedRun] = {}
        for run in sorted(self.completed or self.runs, key=lambda run: run.started_at):
            newest[run.seeds] = run
        return [run for run in self.runs if newest.get(run.seeds) is run]

    @property
    def without_repeats(self) -> list[ComparedRun]:
        """The runs but for those completed ones that a newer one of the same seed takes the place of."""
        counted = {id(run) for run in self.counted}
        return [run for run in self.runs if run.status != "completed" or id(run) in counted]

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
        """A curve against an axis, as far as all runs that count have come; empty if its positions are unknown."""
        runs = [run for run in self.counted if name in run.curves]
        points = [{point.place: (run, point) for point in run.curves[name]} for run in runs]
        shared = sorted(set.intersection(*map(set, points))) if points else []
        found = []
        for place in shared:
            at = [point.at(axis, predicted=run.predicted) for run, point in (each[place] for each in points)]
            values = [each[place][1].value for each in points]
            if None not in at:
                x = statistics.fmean(place for place in at if place is not None)
                found.append(CoursePoint(x, statistics.fmean(values), min(values), max(values)))
        return found


@dataclass(frozen=True)
class Collected:
    """The runs under some folders.

    Attributes:
        groups: those that can be read.
        skipped: the others, each with its reason.
    """

    groups: Sequence[SweepGroup]
    skipped: Sequence[ComparedRun] = ()


def labels_of(groups: Sequence[SweepGroup], longest: int = LONGEST_NAME) -> list[str]:
    """Labels of the groups in tables and figures: their names, or numbers if a name is long."""
    return labels_or_numbers([group.name for group in groups], [group.method for group in groups], longest)


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
) -> Collected:
    """The groups of all runs under some folders.

    Runs are of one group where they differ in nothing that changes results, but the seed.

    Args:
        folders: of sweeps or runs.
        target: metrics whose time is asked for.
        others: runs that left no directory.
        by: what else has to be the same: `commit`, `host`.

    Raises:
        ConfigError: there is none.
    """
    directories = {run.path.resolve(): run for folder in folders for run in runs_in(folder)}
    runs = [*(read(run, target) for run in directories.values()), *others]
    if not runs:
        raise ConfigError(f"{' '.join(map(str, folders))}: no runs here; name the folder of a sweep or run")
    kinds: dict[object, list[ComparedRun]] = {}
    for run in runs:
        if run.status != "damaged":
            told = {**run.facts, **{name: run.provenance[name] for name in by if name in run.provenance}}
            kinds.setdefault(compared_settings(run), []).append(replace(run, facts=told))
    groups = [group for kind in kinds.values() for group in _split(kind)]
    best_known = [max(group, key=lambda run: len(run.facts)) for group in groups]
    called = zip(distinct_names(best_known), groups, distinguishing_settings(best_known), strict=True)
    return Collected(
        [SweepGroup(*each) for each in called],
        [run for run in runs if run.status == "damaged"],
    )


def _split(kind: Sequence[ComparedRun]) -> list[list[ComparedRun]]:
    """Splits runs with the same settings into groups that differ in the seed alone.

    A run of which less is known, such as one that was killed before it had a plan, joins the only group that it can be
    of.
    """
    groups: list[list[ComparedRun]] = []
    for run in sorted(kind, key=lambda run: -len(run.facts)):
        same = [group for group in groups if group[0].facts == run.facts]
        possible = same or [group for group in groups if may_be_same(group[0], run)]
        if len(possible) == 1:
            possible[0].append(run)
        else:
            groups.append([run])
    order = {id(run): number for number, run in enumerate(kind)}
    return [sorted(group, key=lambda run: order[id(run)]) for group in groups]


_NOT_COMPARED = (
    "resume", "replay_drains", "debug", "trace", "log", "checkpoint", "launch", "sweep", "hydra", "partition.path",
)  # fmt: skip
"""Settings, and sections of settings, that do not make runs different; of a plan in a file, its content does."""
_METHOD = "method"
_DRAINS = "checkpoint.every_steps"
"""The setting of checkpoints that changes results: an asynchronous pipeline drains for each."""


def compared_settings(run: ComparedRun) -> tuple[tuple[str, str], ...]:
    """Equal for runs whose settings differ only in seeds."""
    return tuple(sorted((name, str(value)) for name, value in run.settings.items() if _is_compared(name)))


def may_be_same(one: ComparedRun, other: ComparedRun) -> bool:
    """True if no fact known of both runs differs."""
    return all(other.facts.get(name, value) == value for name, value in one.facts.items())


def distinct_names(runs: Sequence[ComparedRun]) -> list[str]:
    """A name for each of some runs that all differ, made of `told_apart`; of a single run its method, or its path."""
    return [
        " ".join(value if setting == _METHOD else f"{setting}={value}" for setting, value in told.items())
        or _shown(run.settings.get(_METHOD, run.path))
        for run, told in zip(runs, distinguishing_settings(runs), strict=True)
    ]


def distinguishing_settings(runs: Sequence[ComparedRun]) -> list[dict[str, str]]:
    """Setting -> value for each of some runs that all differ, the method first.

    It has what was asked for on the command line of any of them and differs between them; where that does not tell two
    apart, as much else as does.
    """
    asked = {name for run in runs for name in run.asked}
    known = {name for run in runs for name in run.settings}
    # `method` asks for that alone, not for all of `method.…`; `train.target` is nothing by itself
    shown = [each for each in _differing(runs) if each in asked or _is_within(each, asked - known)]
    found = [_told(run, shown) for run in runs]
    for told in [each for number, each in enumerate(found) if each in found[:number]]:
        same = [index for index, each in enumerate(found) if each == told]
        more = _telling_apart([runs[index] for index in same])
        for index in same:
            found[index] = _told(runs[index], [*shown, *(setting for setting in more if setting not in shown)])
    return found


def labels_or_numbers(names: Sequence[str], methods: Sequence[str], longest: int) -> list[str]:
    """The names, or, where one is longer than `longest`, numbers with the methods, such as `3 pipeoptim`."""
    if all(len(name) <= longest for name in names):
        return list(names)
    numbers = range(1, len(names) + 1)
    return [f"{number} {shortened(each, longest)}".strip() for number, each in zip(numbers, methods, strict=True)]


def _telling_apart(runs: Sequence[ComparedRun]) -> list[str]:
    """As few settings or facts as distinguish the runs; choices of a group rather than the settings they imply."""
    left = sorted(_differing(runs), key=lambda name: (any(name in run.facts for run in runs), "." in name))
    chosen: list[str] = []

    def told(more: Sequence[str]) -> int:
        return len({tuple(str(_value(run, name)) for name in more) for run in runs})

    while told(chosen) < len(runs) and left:
        best = max(left, key=lambda name: told([*chosen, name]))
        if told([*chosen, best]) == told(chosen):
            break
        chosen.append(best)
        left.remove(best)
    return chosen


def _is_compared(setting: str) -> bool:
    named = (setting, setting.partition(".")[0])
    return setting == _DRAINS or not (is_seed(setting) or any(each in _NOT_COMPARED for each in named))


def _value(run: ComparedRun, name: str) -> Any:
    return run.facts.get(name, run.settings.get(name))


def _is_within(setting: str, asked: set[str]) -> bool:
    parts = setting.split(".")
    return any(".".join(parts[:count]) in asked for count in range(1, len(parts) + 1))


def _differing(runs: Sequence[ComparedRun]) -> list[str]:
    """The settings that differ, the method first."""
    settings = sorted({name for run in runs for name in (*run.settings, *run.facts) if _is_compared(name)})
    differing = [name for name in settings if len({str(_value(run, name)) for run in runs}) > 1]
    return sorted(differing, key=lambda name: name != "method")


def _told(run: ComparedRun, shown: Sequence[str]) -> dict[str, str]:
    """The values of the settings that the run has, these by the last part of their names where that is enough."""
    last = [setting.rpartition(".")[2] for setting in shown]
    return {
        short if last.count(short) == 1 else setting: _shown(value)
        for setting, short in zip(shown, last, strict=True)
        if (value := _value(run, setting)) is not None
    }


def _shown(value: Any) -> str:
    return printable(str(value).lower() if isinstance(value, bool) else str(value))
