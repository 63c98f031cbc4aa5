"""The figure of a sweep: a metric over epochs, and beside it where each group ended and what that took."""

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipetrain.report.style import GRAY, INK, figure
from pipetrain.report.sweep.colors import Look, looks
from pipetrain.report.sweep.columns import column_of, metric_of
from pipetrain.report.sweep.end_labels import label_ends
from pipetrain.report.sweep.groups import SweepGroup
from pipetrain.report.text_table import shortened
from pipetrain.tracking.throughput import MEASURED, PREDICTED, in_tokens

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Draw = Callable[["Axes"], None]
_LONGEST_NAME = 36
_MB = 1e-6
_SPEEDS = (MEASURED, PREDICTED, in_tokens(MEASURED), in_tokens(PREDICTED))
_UNITS = {"idle_share": (100, "% of the time"), "memory_bytes": (_MB, "MB, largest process")}


def draw(path: Path, metric: str | None, groups: Sequence[SweepGroup]) -> None:
    """Draws courses and, in the order of the table, final values, throughput, time, idle share and memory."""
    groups = [group for group in groups if any(run.values for run in group.counted)]
    rows = _Rows(groups, looks(groups))
    panels: list[tuple[float, Draw]] = []
    courses = [name for name in (metric, metric_of(groups, metric)) if name]
    if course := next((name for name in courses if any(map(_has(name), groups))), None):
        panels.append((5.8, lambda panel: _curves(panel, course, rows)))
    if metric and any(group.values(metric) for group in groups):
        panels.append((2.6, lambda panel: rows.dots(panel, metric)))
    # the peak of a simulation is that of a process which has other runs behind it
    memory = ["memory_bytes"] if all(map(_distributed, groups)) else []
    for name in (*_SPEEDS, "target_s", "wall_s", "idle_share", *memory):
        if name != metric and any(group.values(name) for group in groups):
            panels.append((max(1.7, 0.11 * len(column_of(name).head)), lambda panel, name=name: rows.bars(panel, name)))  # type: ignore[misc]
    panels.append((2.3, rows.memory))
    first_of_rows = 1 if course else 0
    with figure(path, tuple(width for width, _ in panels), height=max(3.2, 0.24 * len(groups) + 1.2)) as axes:
        for index, (panel, (_, fill)) in enumerate(zip(axes, panels, strict=True)):
            fill(panel)
            if index >= first_of_rows:
                rows.name(panel, shown=index == first_of_rows)


def _has(name: str) -> Callable[[SweepGroup], bool]:
    return lambda group: bool(group.curve(name))


def _distributed(group: SweepGroup) -> bool:
    return all(run.settings.get("executor.name") == "distributed" for run in group.runs)


def _curves(panel: "Axes", name: str, rows: "_Rows") -> None:
    """The courses, each with its name at its end."""
    ends = []
    for group, look in zip(rows.groups, rows.looks, strict=True):
        if points := group.curve(name):
            epochs, values = zip(*points, strict=True)
            mark = "o" if len(points) == 1 else "None"  # a line through one point cannot be seen
            panel.plot(epochs, values, marker=mark, color=look.color, linestyle=look.style, linewidth=1.4, markersize=5)
            if not group.completed:
                panel.plot(epochs[-1], values[-1], marker="X", color=look.color, markersize=7)
            ends.append((epochs[-1], values[-1], shortened(group.name, _LONGEST_NAME), look.color))
    panel.locator_params(axis="x", integer=True, min_n_ticks=1)
    panel.ticklabel_format(axis="y", useOffset=False)
    head = column_of(name).head.removeprefix("final ")
    panel.set(xlabel="epoch", ylabel=head, title=f"{head} by epoch, mean over seeds")
    label_ends(panel, ends)


class _Rows:
    """Panels with a row for each group, best on top."""

    def __init__(self, groups: Sequence[SweepGroup], found: Sequence[Look]) -> None:
        self.groups, self.looks = groups, found

    def name(self, panel: "Axes", *, shown: bool) -> None:
        """Puts the rows in place, with their names where they are shown."""
        labels = [shortened(group.name, _LONGEST_NAME) if shown else "" for group in self.groups]
        panel.set_yticks(range(len(self.groups)), labels)
        panel.set_ylim(len(self.groups) - 0.4, -0.6)
        panel.grid(visible=False, axis="y")

    def dots(self, panel: "Axes", name: str) -> None:
        """Every seed as a dot, and the mean as a stroke."""
        for index, (group, look) in enumerate(zip(self.groups, self.looks, strict=True)):
            if values := group.values(name):
                panel.plot([min(values), max(values)], [index, index], color=GRAY, linewidth=1.2)
                panel.plot(values, [index] * len(values), "o", color=look.color, markersize=4, alpha=0.6)
                panel.plot([statistics.fmean(values)], [index], "|", color=INK, markersize=10, markeredgewidth=1.6)
        panel.locator_params(axis="x", nbins=4)
        panel.ticklabel_format(axis="x", useOffset=False)
        panel.set(title=column_of(name).head, xlabel="every seed, and the mean")

    def bars(self, panel: "Axes", name: str) -> None:
        """The means as bars."""
        scale, unit = _UNITS.get(name, (1, "mean over seeds"))
        for index, (group, look) in enumerate(zip(self.groups, self.looks, strict=True)):
            if (mean := group.mean(name)) is not None:
                panel.barh(index, scale * mean, height=0.6, color=look.color)
        panel.locator_params(axis="x", nbins=4)
        panel.set(title=column_of(name).head, xlabel=unit)

    def memory(self, panel: "Axes") -> None:
        """Weights and, behind them, activations, of all stages together."""
        for index, (group, look) in enumerate(zip(self.groups, self.looks, strict=True)):
            weights, activations = (_MB * (group.mean(f"{name}_bytes") or 0.0) for name in ("weight", "activation"))
            panel.barh(index, weights, height=0.6, color=look.color)
            panel.barh(index, activations, left=weights, height=0.6, color=look.color, alpha=0.35)
        panel.locator_params(axis="x", nbins=4)
        panel.set(title="weights, activations", xlabel="MB; activations pale")
