"""One figure of what an experiment and its companions measured, from what was kept of their runs."""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipetrain.report.sweep import figure
from pipetrain.report.sweep.compared_run import ComparedRun
from pipetrain.report.sweep.groups import SweepGroup
from pipetrain.report.sweep.report import ranked
from pipetrain.reproduce.results import Measured

_NO_NUMBERS = {"path", "status", "reason", "seed", "final", "best", "forward_staleness", "curves"}


def draw(path: Path, parts: Sequence[Measured]) -> None:
    """Draws the runs of all parts as one sweep, ranked by the metric of the first."""
    groups = [group for part in parts for group in _groups(part)]
    available = {name for group in groups for run in group.runs for name in run.values}
    metric = parts[0].metric
    groups, chosen = ranked(groups, metric if metric in available else None)
    figure.draw(path, chosen, groups)


def _groups(part: Measured) -> Iterator[SweepGroup]:
    with (part.folder / "runs.csv").open(encoding="utf-8", newline="") as file:
        methods = {row["name"]: row["method"] for row in csv.DictReader(file)}
    for group in json.loads((part.folder / "sweep.json").read_text(encoding="utf-8"))["groups"]:
        method = methods.get(group["name"], "")
        yield SweepGroup(group["name"], [_run(run, method) for run in group["runs"]])


def _run(kept: Mapping[str, Any], method: str) -> ComparedRun:
    return ComparedRun(
        path=Path(kept["path"]),
        status=kept["status"],
        settings={"method": method, "seed": kept["seed"]},
        final=kept["final"],
        best=kept["best"],
        numbers={name: value for name, value in kept.items() if name not in _NO_NUMBERS and value is not None},
        curves={name: [(epoch, value) for epoch, value in points] for name, points in kept["curves"].items()},
    )
