"""`pipetrain report runs`: reads the runs, prints their tables, and writes them with a figure where asked to."""

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipetrain.errors import ConfigError
from pipetrain.report.sweep import table
from pipetrain.report.sweep.columns import column_of, metric_of
from pipetrain.report.sweep.compared_run import ComparedRun
from pipetrain.report.sweep.groups import SweepGroup
from pipetrain.report.sweep.page import page
from pipetrain.tracking import strict_json
from pipetrain.tracking.throughput import ALL_THROUGHPUTS
from pipetrain.tracking.whole_file import write_whole

_NO_NUMBERS = {"path", "status", "reason", "seed", "final", "best", "forward_staleness", "curves"}
"""Of a run in JSON, what is beside its numbers."""


def ranked(groups: Sequence[SweepGroup], metric: str | None) -> tuple[list[SweepGroup], str | None]:
    """The groups, best first and those without a completed run last, and the column that they were ranked by.

    Raises:
        ConfigError: `metric` is named, and no run has it.
    """
    available = sorted({name for group in groups for run in group.runs for name in run.values})
    if metric is not None and metric not in available:
        raise ConfigError(f"--metric {metric}: no run has it; available: {', '.join(available) or 'none'}")
    chosen = metric or metric_of(groups, None)
    return sorted(groups, key=lambda group: _rank(group, chosen)), chosen


def check_target(groups: Sequence[SweepGroup], target: Mapping[str, float]) -> None:
    """Checks that some run was evaluated by the metrics of the target, if any was evaluated at all.

    Raises:
        ConfigError: none has one of them.
    """
    available = sorted({name for group in groups for run in group.runs for name in (*run.curves, *run.final)})
    metrics = [name for name in available if name not in ALL_THROUGHPUTS]
    for name, value in target.items():
        if metrics and name not in metrics:
            raise ConfigError(f"--target {name}={value:g}: no run has it; available: {', '.join(metrics)}")


def _rank(group: SweepGroup, metric: str | None) -> tuple[bool, float]:
    mean = group.mean(metric) if metric else None
    value = math.inf if metric is None or mean is None else -mean if column_of(metric).higher else mean
    return not group.completed, value


def as_json(groups: Sequence[SweepGroup], metric: str | None) -> str:
    """Every group with its runs, and mean and sample standard deviation of every column."""
    content = {"metric": metric, "groups": [_group(group) for group in groups]}
    return strict_json.dumps(content, indent=1) + "\n"


def _group(group: SweepGroup) -> dict[str, Any]:
    columns = sorted({name for run in group.counted for name in run.values})
    runs = [
        {
            "path": str(run.path),
            "status": run.status,
            "reason": run.reason,
            "seed": run.settings.get("seed"),
            "final": dict(run.final),
            "best": dict(run.best),
            **run.numbers,
            "forward_staleness": list(run.staleness),
            "curves": dict(run.curves),
        }
        for run in group.runs
    ]
    return {
        "name": group.name,
        "statuses": dict(group.statuses),
        "mean": {name: group.mean(name) for name in columns},
        "standard_deviation": {name: group.deviation(name) for name in columns},
        "runs": runs,
    }


def from_json(content: Mapping[str, Any], methods: Mapping[str, str]) -> list[SweepGroup]:
    """The groups of what `as_json` wrote, as far as it tells them; `methods` are those of groups, by their names."""
    return [
        SweepGroup(group["name"], [_run(run, methods.get(group["name"], "")) for run in group["runs"]])
        for group in content["groups"]
    ]


def _run(kept: Mapping[str, Any], method: str) -> ComparedRun:
    return ComparedRun(
        path=Path(kept["path"]),
        status=kept["status"],
        reason=kept["reason"],
        settings={"method": method, "seed": kept["seed"]},
        final=_numbers(kept["final"]),
        best=_numbers(kept["best"]),
        numbers=_numbers({name: value for name, value in kept.items() if name not in _NO_NUMBERS}),
        staleness=kept["forward_staleness"],
        curves={
            name: [(epoch, strict_json.number(value)) for epoch, value in points]
            for name, points in kept["curves"].items()
        },
    )


def _numbers(values: Mapping[str, float | None]) -> dict[str, float]:
    return {name: strict_json.number(value) for name, value in values.items()}


def write(groups: Sequence[SweepGroup], metric: str | None, output: Path, title: str | None = None) -> list[Path]:
    """Writes the tables, the numbers, the figure and the page; returns the files.

    Args:
        groups: best first.
        metric: what they are ranked by.
        output: what the names of the files begin with.
        title: of the page; None: the same.
    """
    from pipetrain.report.sweep.figure import draw

    paths = [output.with_name(f"{output.name}.{ending}") for ending in ("md", "json", "png", "html")]
    write_whole(paths[0], table.markdown(groups, metric))
    write_whole(paths[1], as_json(groups, metric))
    draw(paths[2], metric, groups)
    write_whole(paths[3], page(title or output.name, metric, groups))
    return paths


def write_page(groups: Sequence[SweepGroup], metric: str | None, folders: Sequence[Path]) -> list[Path]:
    """Writes the page alone, into the folder of the runs, returns it; none for several folders or a read-only one."""
    path = folders[0] / "report.html"
    if len(folders) > 1 or not os.access(folders[0], os.W_OK):
        return []
    write_whole(path, page(folders[0].resolve().name, metric, groups))
    return [path]


def target_of(words: Sequence[str]) -> Mapping[str, float]:
    """The target of words such as `top1=80`.

    Raises:
        ConfigError: one is not of that form.
    """
    target = {}
    for word in words:
        metric, _, value = word.partition("=")
        try:
            target[metric] = float(value)
        except ValueError:
            raise ConfigError(f"--target {word}: a metric and a number, such as top1=80") from None
    return target
