"""The runs of a sweep, those that differ only in the seed together."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipetrain.errors import ConfigError
from pipetrain.report.sweep.compared_run import ComparedRun, Curve, read
from pipetrain.report.sweep.names import kind_of, names
from pipetrain.tracking.run_directory import runs_in

_DAMAGED = "(damaged runs)"


@dataclass(frozen=True)
class SweepGroup:
    """The runs of one configuration under several seeds.

    Attributes:
        name: what sets it apart from the other groups.
        runs: all of them.
    """

    name: str
    runs: Sequence[ComparedRun]

    @property
    def method(self) -> str:
        """The method of all its runs."""
        return str(self.runs[0].settings.get("method", ""))

    @property
    def completed(self) -> list[ComparedRun]:
        """The runs that completed."""
        return [run for run in self.runs if run.status == "completed"]

    @property
    def counted(self) -> Sequence[ComparedRun]:
        """The runs whose numbers count: those that completed; where none did, all, as far as they got."""
        return self.completed or self.runs

    @property
    def statuses(self) -> Counter[str]:
        """How many runs ended how."""
        return Counter(run.status for run in self.runs)

    @property
    def staleness(self) -> list[int]:
        """Of forwards, for each stage the largest seen in the completed runs."""
        return [max(seen) for seen in zip(*(run.staleness for run in self.completed), strict=True)]

    def by_stage(self, name: str) -> list[float]:
        """What was measured of every stage, the mean over seeds."""
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

    def curve(self, name: str) -> Curve:
        """The mean over seeds, epoch by epoch."""
        points: dict[float, list[float]] = {}
        for run in self.counted:
            for epoch, value in run.curves.get(name, ()):
                points.setdefault(epoch, []).append(value)
        return [(epoch, statistics.fmean(points[epoch])) for epoch in sorted(points)]


def collect(
    folders: Sequence[Path], target: Mapping[str, float], others: Sequence[ComparedRun] = ()
) -> list[SweepGroup]:
    """The groups of all runs under some folders; those that are damaged are a group of their own.

    Args:
        folders: of sweeps or runs.
        target: metrics whose time is asked for.
        others: runs that left no directory.

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
            kinds.setdefault(kind_of(run), []).append(run)
    called = names([kind[0] for kind in kinds.values()])
    groups = [SweepGroup(name, kind) for name, kind in zip(called, kinds.values(), strict=True)]
    damaged = [run for run in runs if run.status == "damaged"]
    return [*groups, SweepGroup(_DAMAGED, damaged)] if damaged else groups
