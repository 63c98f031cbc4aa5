"""The figure of a plan: its time next to other plans' times, and time and memory of its stages."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipetrain.report.planning.plan_table import ComparedPlan, Comparison, shape
from pipetrain.report.style import BLUE, GRAY, GREEN, INK, ORANGE, figure
from pipetrain.report.text_table import rate_of, size_of, unit_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_COLORS = {"data parallel": GRAY, "straight": ORANGE, "best": BLUE}
_FEW = 12
"""Stages that still have room for numbers."""


def draw(path: Path, comparison: Comparison) -> None:
    """Draws the figure and writes it to a file."""
    stages = len(comparison.best.stages)
    width = min(9.0, max(3.2, 0.55 * stages + 1.6))
    of_stages = (width, width) if stages > 1 else ()
    with figure(path, (4.4, 2.8, *of_stages), 3.4) as panels:
        for panel, drawn in zip(panels, (_plans, _sent, _times, _memory), strict=False):
            drawn(panel, comparison)


def _plans(panel: "Axes", comparison: Comparison) -> None:
    rows = list(reversed(comparison.rows))
    rates = [f"{rate_of(comparison.samples_per_s(row.plan))} samples/s" for row in rows]
    texts = [rate if row.fits else f"{rate}, too large" for rate, row in zip(rates, rows, strict=True)]
    _bars(panel, rows, [row.plan.time_per_minibatch_s * 1e3 for row in rows], texts)
    panel.set_yticks(range(len(rows)), [f"{row.name}\n{shape(row.plan).removeprefix('straight, ')}" for row in rows])
    panel.set_xlabel("time per minibatch (ms)")
    panel.set_title("Plans")


def _sent(panel: "Axes", comparison: Comparison) -> None:
    rows = list(reversed(comparison.rows))
    sent = [comparison.sent_per_sample(row.plan) for row in rows]
    unit, size = unit_of(max(sent))
    _bars(panel, rows, [each / size for each in sent], [size_of(each) for each in sent])
    panel.set_yticks([])
    panel.set_xlabel(f"sent per sample ({unit})")
    panel.set_title("What they send")


def _bars(panel: "Axes", rows: Sequence[ComparedPlan], values: Sequence[float], texts: Sequence[str]) -> None:
    """A bar for each plan from bottom to top, followed by a text."""
    panel.barh(range(len(values)), values, color=[_COLORS[row.name] for row in rows], height=0.6)
    for place, (value, text) in enumerate(zip(values, texts, strict=True)):
        panel.text(value, place, f" {text}", va="center", color=INK, fontsize=8.5)
    panel.set_xlim(0, 1.7 * max(*values, 1e-9))
    panel.grid(visible=False, axis="y")


def _times(panel: "Axes", comparison: Comparison) -> None:
    plan = comparison.best
    values = [stage.time_s * 1e3 for stage in plan.stages]
    panel.bar(range(len(values)), values, color=BLUE, width=0.7)
    bound = plan.time_per_minibatch_s * 1e3
    limit = "slowest stage or link" if comparison.topology.cores is None else "slowest stage, link or cores"
    panel.axhline(bound, color=INK, linewidth=1, linestyle=(0, (4, 2)), label=limit)
    panel.set_ylim(0, 1.25 * bound)
    panel.set_ylabel("time per minibatch (ms)")
    panel.set_title("Stages of the best plan")
    panel.legend(loc="upper right")
    _stage_axis(panel, comparison)


def _memory(panel: "Axes", comparison: Comparison) -> None:
    limits = rooms_of(comparison)
    kept = [stage.memory_bytes for stage in comparison.best.stages]
    unit, size = unit_of(max(*kept, *limits, 0.0))
    panel.bar(range(len(kept)), [each / size for each in kept], color=GREEN, width=0.7)
    if limits:
        same = len(set(limits)) == 1
        for r, limit in enumerate(limits):
            label = "_" if r else f"device: {size_of(limit)}" if same else "device"
            ends = (-0.5, len(limits) - 0.5) if same else (r - 0.45, r + 0.45)
            panel.hlines(limit / size, *ends, color=INK, linewidth=1, linestyle=(0, (4, 2)), label=label)
        panel.legend(loc="upper right")
        panel.set_ylim(0, 1.25 * max(*kept, *limits) / size)
    panel.set_ylabel(f"memory of a replica ({unit})")
    panel.set_title("What they keep")
    _stage_axis(panel, comparison)


def rooms_of(comparison: Comparison) -> list[float]:
    """Memory of the smallest device of each stage; empty if it is unlimited."""
    rooms, device = [], 0
    for stage in comparison.best.stages:
        of_stage = [comparison.topology.device(device + each).memory_bytes for each in range(stage.replicas)]
        rooms.append(min((room for room in of_stage if room), default=0.0))
        device += stage.replicas
    return rooms if all(rooms) else []


def _stage_axis(panel: "Axes", comparison: Comparison) -> None:
    stages = comparison.best.stages
    if len(stages) <= _FEW:
        panel.set_xticks(range(len(stages)), [f"{r}\n{stage.replicas}" for r, stage in enumerate(stages)])
        panel.set_xlabel("stage, and its replicas")
    else:
        panel.set_xlabel("stage")
    panel.grid(visible=False, axis="x")
