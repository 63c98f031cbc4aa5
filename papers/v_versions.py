"""Staleness and weight versions of `1f1b_v` and of `1f1b` on the same processes, measured in short runs."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch

from papers.staleness import rules_of, trained, weight_copies
from pipetrain.engine.executors.pipeline_rules import PipelineRules
from pipetrain.engine.schedules.operation import Kind
from pipetrain.runner.terminal.style import INK, figure
from pipetrain.runner.terminal.text_table import markdown_table

PROCESSES = range(2, 9)
_ROWS = {"1f1b": "pipedream", "1f1b_v": "pipedream_v"}
"""Schedule -> the row of `papers.staleness` that has it."""
_LOOKS = {"1f1b": ("-", "o"), "1f1b_v": ("--", "s")}
_STEPS = 60
"""Number of minibatches whose operations are counted: a steady state for 16 stages."""


@dataclass(frozen=True)
class Held:
    """Measurements of a run of `pipedream` with N = 1 on P processes.

    Attributes:
        schedule: `1f1b`, with a stage in each process, or `1f1b_v`, with two of half the size.
        staleness: updates between F of a minibatch and its own, by stage, in steady state.
        versions: peak bytes of weights over those of one version, by process; that of a process is the sum of its
            stages' peaks.
        in_flight: largest number of minibatches between F and the end of B on stage 0.
    """

    schedule: str
    staleness: Sequence[int]
    versions: Sequence[float]
    in_flight: int

    @property
    def num_processes(self) -> int:
        """P."""
        return len(self.versions)


def measured(schedule: str, num_processes: int) -> Held:
    """Trains 2P layers of equal size: two in each stage of `1f1b`, one in each stage of `1f1b_v`."""
    torch.set_num_threads(1)
    per_process = 2 if schedule == "1f1b_v" else 1
    num_stages = num_processes * per_process
    rules = rules_of(_ROWS[schedule], num_stages, 1)
    stages = trained(rules, 2 // per_process)
    copies = list(map(weight_copies, stages))
    (staleness,) = zip(*(stage.report()["forward_staleness"] for stage in stages), strict=True)
    placed = rules.schedule.placement(num_stages).stages_of
    versions = [sum(copies[stage] for stage in own) / per_process for own in placed]
    return Held(schedule, staleness, versions, _in_flight(rules))


def _in_flight(rules: PipelineRules) -> int:
    changes = {Kind.FORWARD: 1, Kind.BACKWARD: -1}
    return max(accumulate(changes.get(operation.kind, 0) for operation in rules.lists(_STEPS)[0]))


def table(rows: Sequence[Held]) -> str:
    """A row for each run."""
    heads = ("P", "schedule", "in flight", "staleness by stage", "mean", "versions by process", "most")
    cells = [
        (
            f"{row.num_processes}",
            f"`{row.schedule}`",
            f"{row.in_flight}",
            " ".join(map(str, row.staleness)),
            f"{statistics.fmean(row.staleness):.2f}",
            " ".join(f"{each:g}" for each in row.versions),
            f"{max(row.versions):g}",
        )
        for row in rows
    ]
    return "\n".join(markdown_table(heads, cells))


def draw(path: Path, rows: Sequence[Held]) -> None:
    """Staleness along the layers and versions by process for the largest P, and the most versions by P."""
    largest = max(row.num_processes for row in rows)
    with figure(path, (2.4, 2.4, 2.4), 2.7) as (along, by_process, by_number):
        for schedule, (dashes, marker) in _LOOKS.items():
            own = [row for row in rows if row.schedule == schedule]
            filled = INK if schedule == "1f1b" else "white"
            look: dict[str, Any] = {"color": INK, "linestyle": dashes, "marker": marker, "markerfacecolor": filled}
            look |= {"markersize": 4, "label": schedule}
            deepest = next(row for row in own if row.num_processes == largest)
            layers = 2 * largest // len(deepest.staleness)
            along.plot([each for each in deepest.staleness for _ in range(layers)], **look)
            by_process.plot(deepest.versions, **look)
            by_number.plot([row.num_processes for row in own], [max(row.versions) for row in own], **look)
        for panel, title, where in (
            (along, f"staleness, P = {largest}", "layer"),
            (by_process, f"versions, P = {largest}", "process"),
            (by_number, "most versions in a process", "processes P"),
        ):
            panel.set_title(title)
            panel.set_xlabel(where)
            panel.set_ylim(bottom=0)
        along.legend()
