"""`pipetrain report runs`: the runs of a sweep as one table and one figure, runs that differ in the seed together."""

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pipetrain.errors import ConfigError
from pipetrain.report.text_table import markdown_table
from pipetrain.tracking import metrics_file
from pipetrain.tracking import summary as summaries
from pipetrain.tracking.recorder import LOWER_IS_BETTER
from pipetrain.tracking.run_directory import RunDirectory, finished_runs

_BYTES = 4


@dataclass
class Group:
    """The runs of one configuration under several seeds.

    Attributes:
        label: what sets it apart from the other groups.
        completed, diverged: how many runs ended so.
        final, best: metric name -> its value in each completed run.
        staleness: of forwards, for each stage the largest seen.
        copies: sets of all weights held at most, the bytes of all stages together over those of one version.
        curves: metric name -> for each completed run (epoch, value) of every evaluation.
    """

    label: str
    completed: int = 0
    diverged: int = 0
    final: dict[str, list[float]] = field(default_factory=dict)
    best: dict[str, list[float]] = field(default_factory=dict)
    staleness: list[int] = field(default_factory=list)
    copies: float = 0.0
    curves: dict[str, list[list[tuple[float, float]]]] = field(default_factory=dict)


def report(folders: Sequence[Path], metric: str, output: Path | None) -> None:
    """Prints the table; with `output` also writes OUTPUT.md, OUTPUT.json and OUTPUT.png.

    Raises:
        ConfigError: there is no finished run, or none has the metric.
    """
    groups = collect(folders)
    if not any(metric in group.final for group in groups):
        known = sorted({name for group in groups for name in group.final})
        raise ConfigError(f"--metric {metric}: no run was evaluated by it; there are {', '.join(known) or 'none'}")
    sign = 1 if metric in LOWER_IS_BETTER else -1
    groups.sort(key=lambda group: sign * _mean(group.final[metric]) if metric in group.final else math.inf)
    table = _table(groups, metric)
    print(table)
    if output is None:
        return
    from pipetrain.report.sweep.figure import draw

    output.parent.mkdir(parents=True, exist_ok=True)
    output.with_suffix(".md").write_text(table + "\n", encoding="utf-8")
    output.with_suffix(".json").write_text(json.dumps([asdict(group) for group in groups], indent=1) + "\n")
    draw(output.with_suffix(".png"), metric, groups)
    print(f"\nwritten to {output.with_suffix('')}.md, .json and .png")


def collect(folders: Sequence[Path]) -> list[Group]:
    """The groups of all finished runs under some folders.

    Raises:
        ConfigError: there is none.
    """
    runs = [run for folder in folders for run in finished_runs(folder)]
    if not runs:
        raise ConfigError(f"{' '.join(map(str, folders))}: no summary.json here; name the folder of a sweep or run")
    changes = [_changes(run) for run in runs]
    common = set.intersection(*map(set, changes))
    groups: dict[str, Group] = {}
    for run, own in zip(runs, changes, strict=True):
        summary = summaries.read(run) or {}
        apart = [change for change in own if change not in common]
        label = " ".join(change.removeprefix("method=") for change in apart) or str(summary["method"])
        _add(groups.setdefault(label, Group(label)), run, summary)
    return list(groups.values())


def _changes(run: RunDirectory) -> list[str]:
    """The overrides that a run was started with, its seed aside."""
    return [change for change in run.overrides() if not change.startswith("seed=")]


def _add(group: Group, run: RunDirectory, summary: dict[str, Any]) -> None:
    group.diverged += summary["status"] == "diverged"
    if summary["status"] != "completed":
        return
    group.completed += 1
    for name, value in summary["final"].items():
        group.final.setdefault(name, []).append(value)
        group.best.setdefault(name, []).append(summary["best"][name])
        group.curves.setdefault(name, []).append(_curve(run, name))
    stages = summary["per_stage"]
    group.staleness = [max(stage["forward_staleness"], default=0) for stage in stages]
    held, one = sum(stage["weight_bytes_peak"] for stage in stages), sum(stage["parameters"] for stage in stages)
    group.copies = held / (_BYTES * one)


def _curve(run: RunDirectory, metric: str) -> list[tuple[float, float]]:
    records = [record for record in metrics_file.read(run) if "eval" in record]
    return [(record["epoch"] + 1, record["eval"][metric]) for record in records]


def _table(groups: Sequence[Group], metric: str) -> str:
    heads = ("", f"final {metric}", f"best {metric}", "runs", "staleness of F by stage", "copies of the weights")
    rows = []
    for group in groups:
        ended = f"{group.completed}" + (f", {group.diverged} diverged" if group.diverged else "")
        stale = " ".join(map(str, group.staleness)) if group.completed else "-"
        copies = f"{group.copies:.2f}" if group.completed else "-"
        values = (_shown(group.final.get(metric, [])), _shown(group.best.get(metric, [])))
        rows.append((group.label, *values, ended, stale, copies))
    return "\n".join(markdown_table(heads, rows))


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values)


def _shown(values: Sequence[float]) -> str:
    if not values:
        return "-"
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{_mean(values):.2f}{spread}"
