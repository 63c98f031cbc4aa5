"""The finished runs of a sweep, those that differ only in the seed together."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from pipetrain.errors import ConfigError
from pipetrain.tracking import metrics_file, summary
from pipetrain.tracking.run_directory import RunDirectory, finished_runs

_BYTES = 4
_FIELDS = {"method", "final", "best", "per_stage"}


@dataclass
class SweepGroup:
    """The runs of one configuration under several seeds.

    Attributes:
        label: what sets it apart from the other groups.
        completed, diverged: how many runs ended so.
        damaged: how many left files that cannot be read.
        final, best: metric name -> its value in each completed run.
        staleness: of forwards, for each stage the largest seen.
        copies: sets of all weights held at most, the bytes of all stages together over those of one version.
        curves: metric name -> for each completed run (epoch, value) of every evaluation.
    """

    label: str
    completed: int = 0
    diverged: int = 0
    damaged: int = 0
    final: dict[str, list[float]] = field(default_factory=dict)
    best: dict[str, list[float]] = field(default_factory=dict)
    staleness: list[int] = field(default_factory=list)
    copies: float = 0.0
    curves: dict[str, list[list[tuple[float, float]]]] = field(default_factory=dict)


def collect(folders: Sequence[Path]) -> list[SweepGroup]:
    """The groups of all finished runs under some folders.

    Raises:
        ConfigError: there is none.
    """
    runs = [run for folder in folders for run in finished_runs(folder)]
    if not runs:
        raise ConfigError(f"{' '.join(map(str, folders))}: no summary.json here; name the folder of a sweep or run")
    read = {run: each for run in runs if (each := _Finished.of(run))}
    common = set.intersection(*(set(each.changes) for each in read.values())) if read else set()
    groups: dict[str, SweepGroup] = {}
    for run in runs:
        if run not in read:
            groups[str(run)] = SweepGroup(str(run), damaged=1)
            continue
        content = read[run].summary
        distinct = [change for change in read[run].changes if change not in common]
        label = " ".join(change.removeprefix("method=") for change in distinct) or str(content.get("method"))
        _add(groups.setdefault(label, SweepGroup(label)), run, content)
    return list(groups.values())


@dataclass(frozen=True)
class _Finished:
    """What a run left behind."""

    changes: list[str]
    summary: dict[str, Any]

    @classmethod
    def of(cls, run: RunDirectory) -> Self | None:
        """None where a file of the run is damaged."""
        with contextlib.suppress(ConfigError):
            content = summary.read(run)
            if content is not None and (content["status"] != "completed" or content.keys() >= _FIELDS):
                return cls(_changes(run), content)
        return None


def _changes(run: RunDirectory) -> list[str]:
    """The overrides that a run was started with, its seed aside."""
    return [change for change in run.overrides() if not change.startswith("seed=")]


def _add(group: SweepGroup, run: RunDirectory, content: dict[str, Any]) -> None:
    group.diverged += content["status"] == "diverged"
    if content["status"] != "completed":
        return
    group.completed += 1
    for name, value in content["final"].items():
        group.final.setdefault(name, []).append(value)
        group.best.setdefault(name, []).append(content["best"][name])
        group.curves.setdefault(name, []).append(_curve(run, name))
    stages = content["per_stage"]
    group.staleness = [max(stage["forward_staleness"], default=0) for stage in stages]
    held, one = sum(stage["weight_bytes_peak"] for stage in stages), sum(stage["parameters"] for stage in stages)
    group.copies = held / (_BYTES * one)


def _curve(run: RunDirectory, metric: str) -> list[tuple[float, float]]:
    records = [record for record in metrics_file.read(run) if record["kind"] == "eval"]
    return [(record["epoch"], record[f"eval_{metric}"]) for record in records]
