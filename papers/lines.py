"""Runs against the depth of a pipeline: final losses, steps to a loss and learning rates, a line for each method."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from papers.results import STEPS_TO_LOSS, Row
from pipetrain.reporting.seed_statistics import Interval, Values, ratio
from pipetrain.reporting.steps_to_loss import slowdown
from pipetrain.reporting.sweep.lines import End, label_ends, line_styles
from pipetrain.runner.terminal.style import figure
from pipetrain.runner.terminal.text_table import markdown_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LOSS = "loss"
STAGES = "partition.stages"
_TALLEST = 1.5
"""Losses above so many times the median of the deepest pipelines are drawn at the upper edge, as divergence is."""


@dataclass(frozen=True)
class Line:
    """A method, with an optimizer, at several depths.

    Attributes:
        name: of it.
        measured: `loss` or a column of `STEPS_TO_LOSS` -> depth -> final loss of the evaluation, or steps to the loss,
            by seed; infinite if a run diverged, or ended before.
        rates: depth -> learning rate.
        method: by which figures color it; lines of equal ones differ in color.
    """

    name: str
    measured: Mapping[str, Mapping[int, Values]]
    rates: Mapping[int, float]
    method: str = ""

    @classmethod
    def of(cls, name: str, rows: Sequence[Row], depth: str = STAGES, method: str = "") -> Self:
        """The line of some runs.

        Args:
            name: of the line.
            rows: of `runs.csv`.
            depth: the column of the depth.
            method: by which figures color it.
        """
        found: dict[str, dict[int, dict[str, float]]] = {column: {} for column in (LOSS, *STEPS_TO_LOSS)}
        for row in rows:
            for column, by_depth in found.items():
                # a run whose losses are finite may still end with an evaluation that overflows, which has no number
                value = row.get(column) if row["status"] == "completed" else None
                by_depth.setdefault(int(row[depth]), {})[row["seed"]] = float(value) if value else math.inf
        return cls(name, found, {int(row[depth]): float(row["optimizer.lr"]) for row in rows}, method)

    @property
    def depths(self) -> list[int]:
        """Those that were measured, ascending."""
        return sorted(self.measured[LOSS])

    @property
    def losses(self) -> Mapping[int, Values]:
        """Depth -> final losses by seed."""
        return self.measured[LOSS]

    def reaches(self, column: str) -> bool:
        """True if a run at depth 1 has steps to the loss of that column."""
        return any(map(math.isfinite, self.measured[column].get(1, {}).values()))

    def slowdown(self, column: str, depth: int, over: Values | None = None) -> Interval | None:
        """Steps at a depth over others; None if not measured, or if one of the others is infinite.

        Args:
            column: of `STEPS_TO_LOSS`.
            depth: of ours.
            over: the other steps by seed; None: those of this line at depth 1.
        """
        ours, theirs = self.measured[column].get(depth), over or self.measured[column].get(1)
        if not ours or not theirs or ours.keys() != theirs.keys() or not all(map(math.isfinite, theirs.values())):
            return None
        return slowdown(ours, theirs)

    def to_loss(self, depth: int, other: Values) -> Interval | None:
        """The ratio of the final losses to others, in pairs of equal seeds; None if they do not have the same seeds."""
        ours = self.losses.get(depth)
        return ratio(ours, other) if ours and ours.keys() == other.keys() else None

    def final_loss(self, depth: int) -> str:
        """Mean and standard deviation of the final losses."""
        losses = list(self.losses.get(depth, {}).values())
        if not losses or not all(map(math.isfinite, losses)):
            return "diverged" if losses else ""
        spread = f" ± {statistics.stdev(losses):.3f}" if len(losses) > 1 else ""
        return f"{statistics.fmean(losses):.3f}{spread}"


def depths_of(lines: Sequence[Line]) -> list[int]:
    """All depths of some lines, ascending."""
    return sorted({depth for line in lines for depth in line.depths})


def table(lines: Sequence[Line], depths: Sequence[int], cell: Callable[[Line, int], str], depth: str = "D") -> str:
    """A row for each line, a column for each depth."""
    rows = [(line.name, *(cell(line, at) if at in line.depths else "" for at in depths)) for line in lines]
    return "\n".join(markdown_table(("", *(f"{depth} = {at}" for at in depths)), rows))


def draw(path: Path, lines: Sequence[Line], over: Line | None = None) -> None:
    """Draws what slowdowns there are, infinite ones at the upper edge, and the final loss against the number of stages.

    Args:
        path: of the image.
        lines: a line for each.
        over: the line whose steps with one stage slowdowns are relative to; None: each line's own.
    """
    depths = depths_of(lines)
    shares = {column: share for column, share in STEPS_TO_LOSS.items() if over is None or over.reaches(column)}
    with figure(path, (*(3.7 for _ in shares), 4.7), 4.2) as panels:
        for panel in panels:
            panel.set_xscale("log", base=2)
            panel.set_xticks(depths, [str(stages) for stages in depths])
            panel.minorticks_off()
            panel.set_xlabel("stages D")
        for panel, (column, share) in zip(panels, shares.items(), strict=False):
            panel.set_title(f"steps to the loss at {share:.0%},\nover D = 1")
            _draw_slowdowns(panel, lines, column, 1 / share, over.measured[column].get(1) if over else None)
        panels[0].set_ylabel("slowdown (▲: not reached)")
        panels[-1].set_title("final loss of evaluation (▲: more, or diverged)")
        label_ends(panels[-1], _draw_losses(panels[-1], lines))


def _draw_slowdowns(panel: "Axes", lines: Sequence[Line], column: str, top: float, over: Values | None) -> None:
    for line, look in zip(lines, line_styles([line.method for line in lines]), strict=True):
        found = {depth: interval for depth in line.depths if (interval := line.slowdown(column, depth, over))}
        middles = [min(interval.middle, top) for interval in found.values()]
        lost = [depth for depth, interval in found.items() if math.isinf(interval.middle)]
        panel.plot([*found], middles, color=look.color, linestyle=look.dashes, marker="o", markersize=3)
        if lost:  # an empty line without clipping has no place in the layout
            edge = [top] * len(lost)
            panel.plot(lost, edge, color=look.color, linestyle="none", marker="^", markersize=7, clip_on=False)
        for depth, interval in found.items():
            if interval.low < min(interval.high, top):
                panel.vlines(depth, interval.low, min(interval.high, top), color=look.color, linewidth=0.8, alpha=0.5)
    panel.set_ylim(min(panel.get_ylim()[0], 0.95), 1.02 * top)


def _draw_losses(panel: "Axes", lines: Sequence[Line]) -> list[End]:
    means = [{depth: statistics.fmean(line.losses[depth].values()) for depth in line.depths} for line in lines]
    deepest = [each[max(each)] for each in means if math.isfinite(each[max(each)])]
    top = _TALLEST * statistics.median(deepest) if deepest else math.inf
    ends = []
    for line, each, look in zip(lines, means, line_styles([line.method for line in lines]), strict=True):
        drawn = {depth: min(mean, top) for depth, mean in each.items() if min(mean, top) < math.inf}
        panel.plot([*drawn], [*drawn.values()], color=look.color, linestyle=look.dashes, marker="o", markersize=3)
        if above := [depth for depth, mean in each.items() if mean > top]:
            edge = [top] * len(above)
            panel.plot(above, edge, color=look.color, linestyle="none", marker="^", markersize=7, clip_on=False)
        if drawn:
            ends.append(End(max(drawn), drawn[max(drawn)], line.name, look.color))
    return ends
