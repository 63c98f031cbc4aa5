"""The figure of a network's map: final loss against depth, a line with its name for each method."""

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from papers.field_map.losses import NEAR, PLAIN, FieldMap
from pipetrain.report.style import GRAY, figure
from pipetrain.report.sweep.lines import End, LineStyle, label_ends, line_styles

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_TALLEST = 1.5
"""Losses above so many times the median of the deepest pipelines are drawn at the upper edge, as divergence is."""
Points = Sequence[tuple[int, float]]


def draw(path: Path, found: FieldMap) -> None:
    """Draws the figure."""
    with figure(path, (8.6,), 4.9) as (panel,):
        top = _top(found)
        looks = line_styles(found.methods)
        ends = [_line(panel, found, method, look, top) for method, look in zip(found.methods, looks, strict=True)]
        _plain(panel, found)
        panel.set_xscale("log", base=2)
        panel.set_xticks(found.depths, [str(depth) for depth in found.depths])
        panel.minorticks_off()
        panel.set_ylim(panel.get_ylim()[0], 1.02 * top)
        panel.set(xlabel="stages D", ylabel="final loss of evaluation (▲: more, or diverged)")
        label_ends(panel, ends)


def _top(found: FieldMap) -> float:
    """The largest loss that is drawn where it is."""
    known = {place: loss.median for place, loss in found.losses.items() if math.isfinite(loss.median)}
    deepest = [loss for (_, depth), loss in known.items() if depth == found.depths[-1]]
    limit = _TALLEST * statistics.median(deepest) if deepest else math.inf
    return max((loss for loss in known.values() if loss <= limit), default=1.0)


def _line(panel: "Axes", found: FieldMap, method: str, look: LineStyle, top: float) -> End:
    """Draws a method's losses; returns where they end, with its name."""
    points = [(depth, min(found.losses[method, depth].median, top)) for depth in found.depths_of(method)]
    above = [(depth, top) for depth in found.depths_of(method) if found.losses[method, depth].median > top]
    width = 2.2 if method == PLAIN else 1.2
    panel.plot(*_columns(points), color=look.color, linestyle=look.dashes, marker="o", markersize=3, linewidth=width)
    panel.plot(*_columns(above), color=look.color, linestyle="none", marker="^", markersize=7, clip_on=False)
    return End(*points[-1], method, look.color)


def _columns(points: Points) -> tuple[list[int], list[float]]:
    return [depth for depth, _ in points], [loss for _, loss in points]


def _plain(panel: "Axes", found: FieldMap) -> None:
    """Shades the losses up to which one counts as like plain training's."""
    if found.plain is not None:
        panel.axhspan(panel.get_ylim()[0], NEAR * found.plain.median, color=GRAY, alpha=0.15, linewidth=0)
        panel.set_title(f"shaded: up to {NEAR - 1:.0%} above the {found.plain.median:.3f} of plain training")
