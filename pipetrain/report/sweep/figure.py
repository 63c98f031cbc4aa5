"""The figure of a sweep: a metric over epochs, and where each configuration ended."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipetrain.report.style import GRAY, INK, figure
from pipetrain.report.sweep.groups import SweepGroup

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw(path: Path, metric: str, groups: Sequence[SweepGroup]) -> None:
    """Draws curves (mean over seeds) and, beside them, final values (mean, and every seed as a dot), best on top."""
    shown = [group for group in groups if metric in group.final]
    with figure(path, (5.4, 4.6), height=max(3.6, 0.27 * len(shown) + 1.0)) as (left, right):
        _curves(left, metric, shown)
        _ends(right, metric, shown)


def _color(index: int, count: int) -> Any:
    from matplotlib import colormaps

    return colormaps["turbo"](0.05 + 0.9 * index / max(1, count - 1))


def _curves(panel: "Axes", metric: str, groups: Sequence[SweepGroup]) -> None:
    for index, group in enumerate(groups):
        runs = group.curves[metric]
        epochs = [epoch for epoch, _ in runs[0]]
        means = [statistics.fmean(run[i][1] for run in runs if i < len(run)) for i in range(len(epochs))]
        mark = "o" if len(epochs) == 1 else ""  # a line through one point cannot be seen
        panel.plot(epochs, means, mark + "-", color=_color(index, len(groups)), label=group.label, linewidth=1.4)
    panel.locator_params(axis="x", integer=True, min_n_ticks=1)
    panel.set(xlabel="epoch", ylabel=f"eval {metric}", title="mean over seeds")


def _ends(panel: "Axes", metric: str, groups: Sequence[SweepGroup]) -> None:
    for index, group in enumerate(groups):
        values, mean = group.final[metric], statistics.fmean(group.final[metric])
        panel.plot([min(values), max(values)], [index, index], color=GRAY, linewidth=1.2)
        panel.plot(values, [index] * len(values), "o", color=_color(index, len(groups)), markersize=4, alpha=0.6)
        panel.plot([mean], [index], "|", color=INK, markersize=11, markeredgewidth=1.6)
    panel.set_yticks(range(len(groups)), [group.label for group in groups])
    panel.invert_yaxis()
    panel.set(xlabel=f"final {metric}: every seed, and the mean", title="at the end")
