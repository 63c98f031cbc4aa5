"""Groups of runs that differ only in the seed, and their names."""

import statistics
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pipetrain.reporting.sweep.compared_run import EPOCH, ComparedRun, Point, is_seed
from pipetrain.runner.config.messages import chosen_by
from pipetrain.runner.terminal.text_table import printable, shortened

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
        name: the settings in which it differs from other groups.
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

    @property
    def columns(self) -> set[str]:
        """Columns with a value in the runs that count."""
        return {name for run in self.counted for name in run.values}

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
        if not runs:
            return []
        predicted = [run.predicted for run in runs]
        places = sorted(set.intersection(*map(set, points)))
        courses = (_mean_of([each[place] for each in points], predicted, axis) for place in places)
        return [*filter(None, courses)]


def _mean_of(points: Sequence[Point], predicted: Sequence[bool], axis: str) -> CoursePoint | None:
    """The point of a group's curve where these of its runs are; None if a position on the axis is unknown."""
    at = [point.at(axis, predicted=each) for point, each in zip(points, predicted, strict=True)]
    values = [point.value for point in points]
    known = [x for x in at if x is not None]
    if len(known) < len(at):
        return None
    return CoursePoint(statistics.fmean(known), statistics.fmean(values), min(values), max(values))


def _newest(runs: Iterable[ComparedRun]) -> dict[Hashable, ComparedRun]:
    return {run.seeds: run for run in sorted(runs, key=lambda run: run.started_at)}


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
    """A name for each of some runs that all differ, from its `distinguishing_settings`, or else its method."""
    named = zip(runs, distinguishing_settings(runs), strict=True)
    return [name_of(settings) or _text(run.settings.get(_METHOD, run.path)) for run, settings in named]


def name_of(settings: Mapping[str, str]) -> str:
    """Name such as `gpipe stages=4`, of settings by their short names."""
    return " ".join(value if name == _METHOD else f"{name}={value}" for name, value in settings.items())


def short_settings(names: Sequence[str], values: Mapping[str, Any]) -> dict[str, str]:
    """The values of some settings as far as known, by the last part of their names if that is unambiguous."""
    parts = {name: chosen_by(name).rpartition(".")[2] for name in names}
    last = Counter(parts.values())
    short = {name: part if last[part] == 1 else name for name, part in parts.items()}
    return {short[name]: _text(values[name]) for name in names if values.get(name) is not None}


def distinguishing_settings(runs: Sequence[ComparedRun]) -> list[dict[str, str]]:
    """Setting -> value for each of some runs that all differ, the method first.

    These are the differing settings that any of their command lines gave, and further ones only as far as they are
    needed to distinguish the runs.
    """
    values = [{**run.settings, **run.facts} for run in runs]
    given = _given(runs)
    found = [short_settings(given, each) for each in values]
    for repeated in [each for each in found if found.count(each) > 1]:
        same = [index for index, each in enumerate(found) if each == repeated]
        more = [name for name in _telling_apart([runs[index] for index in same]) if name not in given]
        for index in same:
            found[index] = short_settings([*given, *more], values[index])
    return found


def _given(runs: Sequence[ComparedRun]) -> list[str]:
    """The settings that differ and were given on the command line of any run."""
    asked = {name for run in runs for name in run.asked}
    # `train.target` asks for all of `train.target.…`, but `method`, itself a setting, not for `method.…`
    sections = tuple(f"{name}." for name in asked - {name for run in runs for name in run.settings})
    return [name for name in _differing(runs) if name in asked or name.startswith(sections)]


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


def _text(value: Any) -> str:
    return printable(str(value).lower() if isinstance(value, bool) else str(value))
