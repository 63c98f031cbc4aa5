"""One figure of what an experiment and its companions measured, from what was kept of their runs."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path

from pipetrain.report.sweep import sweep_figure
from pipetrain.report.sweep.comparison import from_json, ranked
from pipetrain.report.sweep.groups import SweepGroup
from pipetrain.reproduce.results import Measured


def draw(path: Path, parts: Sequence[Measured]) -> None:
    """Draws the runs of all parts as one sweep, ranked by the metric of the first."""
    groups = [group for part in parts for group in _groups(part)]
    available = {name for group in groups for run in group.runs for name in run.values}
    metric = parts[0].metric
    groups, chosen = ranked(groups, metric if metric in available else None)
    sweep_figure.draw(path, chosen, groups)


def _groups(part: Measured) -> list[SweepGroup]:
    with (part.folder / "runs.csv").open(encoding="utf-8", newline="") as file:
        methods = {row["name"]: row["method"] for row in csv.DictReader(file)}
    return from_json(json.loads((part.folder / "sweep.json").read_text(encoding="utf-8")), methods)
