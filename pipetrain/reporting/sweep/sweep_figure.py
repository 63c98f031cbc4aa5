"""Figure of a report: metrics and loss over epochs, steps and time, final values, and costs."""

import io
import math
import statistics
import textwrap
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from pipetrain.reporting.seed_statistics import Interval
from pipetrain.reporting.sweep.columns import SPEEDS, column_of, metric_of
from pipetrain.reporting.sweep.compared_run import AXES, EPOCH, PREDICTED_S, STEP, TRAIN_LOSS, WALL_S
from pipetrain.reporting.sweep.groups import CoursePoint, SweepGroup, labels_of, legend_of
from pipetrain.reporting.sweep.lines import End, label_ends, line_styles
from pipetrain.reporting.sweep.slowdown import STEPS, Slowdown, ratio_cell
from pipetrain.runner.terminal.style import GRAY, INK, figure, figure_of_rows, tooltip
from pipetrain.runner.terminal.text_table import shortened
from pipetrain.runner.tracking.throughput import ALL_THROUGHPUTS

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes


_COURSE = 5.8
_LETTERS = 13
"""Letters of the legend that an inch holds."""
_MB = 1e-6
_UNITS = {"idle_share": (100, "% of the time"), "memory_bytes": (_MB, "MB, largest process")}
_AXIS_LABELS = {EPOCH: "epoch", STEP: "step", WALL_S: "wall time, s", PREDICTED_S: "predicted time of the pipeline, s"}
_BY = {EPOCH: "epoch", STEP: "step", WALL_S: "wall time", PREDICTED_S: "predicted time"}
Panel = tuple[float, Callable[["Axes"], None]]
"""The width of a panel in inches, and what draws it."""


def draw(path: Path, metric: str | None, groups: Sequence[SweepGroup], slowdowns: Sequence[Slowdown] = ()) -> None:
    """Draws courses and, in the order of the table, final values, slowdowns, throughput, times and memory."""
    rows = _Rows(groups)
    groups = rows.groups
    bars = _bar_panels(rows, metric, slowdowns)
    courses: list[Panel] = [
        (_COURSE, partial(_course, name=name, axis=axis, rows=rows)) for name, axis in main_courses(metric, groups)
    ]
    pairs = [courses[first : first + 2] for first in range(0, len(courses), 2)]
    lines = [*pairs, bars] if len(courses) > 1 else [[*courses, *bars]]
    widths = [[width for width, _ in line] for line in lines]
    foot = [line for entry in rows.legend for line in textwrap.wrap(entry, round(_LETTERS * max(map(sum, widths))))]
    fills = [fill for line in lines for _, fill in line]
    with figure_of_rows(path, widths, max(3.2, 0.24 * len(groups) + 1.2), foot) as axes:
        for panel, fill in zip(chain(*axes), fills, strict=True):
            fill(panel)
        for index, panel in enumerate(axes[-1][-len(bars) :]):
            panel.set_yticks(range(len(groups)), [""] * len(groups) if index else rows.labels)
            panel.set_ylim(len(groups) - 0.4, -0.6)
            panel.grid(visible=False, axis="y")


def _bar_panels(rows: "_Rows", metric: str | None, slowdowns: Sequence[Slowdown]) -> list[Panel]:
    """The panels with a row for each group."""
    known = set[str]().union(*(group.columns for group in rows.groups))
    panels: list[Panel] = [(2.6, partial(rows.dots, name=metric))] if metric and metric in known else []
    panels += [(0.1 * len(f"slowdown to {each.goal}"), partial(rows.slowdown, found=each)) for each in slowdowns]
    if not _is_distributed(rows.groups):
        known.discard("memory_bytes")  # the peak of a process that may have carried out other runs before
    names = [name for name in (*SPEEDS, "target_s", "wall_s", "idle_share", "memory_bytes") if name in known - {metric}]
    panels += [(_bar_width(name), partial(rows.bars, name=name)) for name in names]
    return [*panels, (2.3, rows.memory)]


def _bar_width(name: str) -> float:
    return max(1.7, 0.11 * len(column_of(name).head))


def _is_distributed(groups: Sequence[SweepGroup]) -> bool:
    """True if every stage of all runs had its own process."""
    return all(run.settings.get("executor.name") == "distributed" for group in groups for run in group.runs)


def metric_curve_svg(name: str, axis: str, groups: Sequence[SweepGroup]) -> str:
    """A course as an SVG element; what belongs to a group has its number as `data-group`."""
    rows, file = _Rows(groups), io.StringIO()
    with figure(file, (course_width(groups),), max(3.2, 0.17 * len(groups))) as (panel,):
        _course(panel, name, axis, rows)
    return file.getvalue()


def course_width(groups: Sequence[SweepGroup]) -> float:
    """Inches of a course with the names of its groups."""
    return _COURSE + 0.08 * max(map(len, labels_of(groups)), default=0)


def _course(panel: "Axes", name: str, axis: str, rows: "_Rows") -> None:
    """The courses, each with its name at its end, and a band over its seeds."""
    ends, courses = [], [group.course(name, axis) for group in rows.groups]
    cut = None if column_of(name, rows.groups).higher else _cut(rows.groups, courses)
    for number, group, points, label, style in zip(
        rows.numbers, rows.groups, courses, rows.labels, rows.styles, strict=True
    ):
        if points:
            places, means, low, high = zip(*points, strict=True)
            mark = "o" if len(points) == 1 else "None"  # a line through one point cannot be seen
            drawn: list[Artist] = [
                *panel.plot(places, means, marker=mark, color=style.color, ls=style.dashes, lw=1.4, markersize=5)
            ]
            if low != high:
                drawn.append(panel.fill_between(places, low, high, color=style.color, alpha=0.15, linewidth=0))
            end = means[-1] if cut is None else min(means[-1], cut)
            if not group.completed:
                drawn += panel.plot(places[-1], end, marker="X", color=style.color, markersize=7, clip_on=False)
            ends.append(End(places[-1], end, label, style.color, tooltip(group.name, number)))
            for each in drawn:
                each.set_gid(ends[-1].gid)
    if axis in (EPOCH, STEP):
        panel.locator_params(axis="x", integer=True, min_n_ticks=1)
    else:
        panel.set_xlim(left=0)
    panel.ticklabel_format(axis="y", useOffset=False)
    if name in ALL_THROUGHPUTS:
        panel.set_ylim(bottom=0)
    title = f"{heading(name, axis)}, {band(name, rows.groups)}"
    if cut is not None:
        lowest = min(point.low for points in courses for point in points)
        panel.set_ylim(lowest - 0.05 * (cut - lowest), cut)
        title += f", cut at {cut:.3g}"
    panel.set(xlabel=_AXIS_LABELS[axis], ylabel=quantity(name), title=title)
    label_ends(panel, ends)


def _cut(groups: Sequence[SweepGroup], courses: Sequence[Sequence[CoursePoint]]) -> float | None:
    """Highest value that is shown; None for all values.

    The losses of a run that diverges would flatten all other courses onto the axis.
    """
    sound = [points for group, points in zip(groups, courses, strict=True) if points and not _is_lost(group)]
    cut = 1.2 * _highest(sound or [points[:1] for points in courses])
    return cut if _highest(courses) > 2 * cut > 0 else None


def _is_lost(group: SweepGroup) -> bool:
    """True if runs diverged and none completed."""
    return not group.completed and bool(group.statuses["diverged"])


def _highest(courses: Sequence[Sequence[CoursePoint]]) -> float:
    return max((point.high for points in courses for point in points), default=0.0)


class _Rows:
    """Panels with a row for each group, best on top."""

    def __init__(self, groups: Sequence[SweepGroup]) -> None:
        labels = labels_of(groups)
        self.numbers = [i for i, group in enumerate(groups) if any(run.values for run in group.counted)]
        self.groups, self.labels = [groups[i] for i in self.numbers], [labels[i] for i in self.numbers]
        styles = line_styles([group.method for group in groups])  # as in the tables of a page, which have all groups
        self.styles = [styles[i] for i in self.numbers]
        names = [f"{number}  {group.name}" for number, group in enumerate(groups, start=1)]
        self.legend = names if legend_of(groups) else []

    def dots(self, panel: "Axes", name: str) -> None:
        """Every seed as a dot, and the mean as a stroke."""
        for index, (group, style) in enumerate(zip(self.groups, self.styles, strict=True)):
            if values := group.values(name):
                panel.plot([min(values), max(values)], [index, index], color=GRAY, linewidth=1.2)
                panel.plot(values, [index] * len(values), "o", color=style.color, markersize=4, alpha=0.6)
                panel.plot([statistics.fmean(values)], [index], "|", color=INK, markersize=10, markeredgewidth=1.6)
        if name in ALL_THROUGHPUTS:
            panel.set_xlim(left=0)
        panel.locator_params(axis="x", nbins=4)
        panel.ticklabel_format(axis="x", useOffset=False)
        panel.set(title=column_of(name).head, xlabel="every seed, and the mean")

    def bars(self, panel: "Axes", name: str) -> None:
        """The means as bars."""
        scale, unit = _UNITS.get(name, (1, "mean over seeds"))
        for index, (group, style) in enumerate(zip(self.groups, self.styles, strict=True)):
            if (mean := group.mean(name)) is not None:
                panel.barh(index, scale * mean, height=0.6, color=style.color)
        panel.locator_params(axis="x", nbins=4)
        panel.set(title=column_of(name).head, xlabel=unit)

    def slowdown(self, panel: "Axes", found: Slowdown) -> None:
        """Slowdowns in steps with their intervals; an infinite one as a pale bar across the panel."""
        rows = ((index, found.rows[number]) for index, number in enumerate(self.numbers))
        ratios = {index: row.over_baseline[STEPS] for index, row in rows if STEPS in row.over_baseline}
        ratios = {index: ratio for index, ratio in ratios.items() if not ratio.infinite[1]}
        widest = 1.4 * max((each.middle for each in ratios.values() if math.isfinite(each.middle)), default=1.0)
        for index, ratio in ratios.items():
            self._ratio(panel, index, ratio, widest)
        panel.axvline(1.0, color=GRAY, linewidth=0.9, linestyle=":")
        panel.set_xlim(0, widest)
        panel.set(title=f"slowdown to {found.goal}", xlabel=f"steps over {shortened(found.baseline, 18)}")

    def _ratio(self, panel: "Axes", index: int, ratio: Interval, widest: float) -> None:
        color = self.styles[index].color
        if ratio.infinite[0]:
            panel.barh(index, widest, height=0.6, color=color, alpha=0.25)
            panel.text(0.02 * widest, index, ratio_cell(ratio), va="center", fontsize=8)
            return
        panel.barh(index, ratio.middle, height=0.6, color=color, alpha=1.0)
        if math.isfinite(ratio.high):
            panel.plot([ratio.low, ratio.high], [index, index], color=INK, linewidth=1.2)

    def memory(self, panel: "Axes") -> None:
        """Weights and, behind them, activations, of all stages together."""
        for index, (group, style) in enumerate(zip(self.groups, self.styles, strict=True)):
            weights, activations = (_MB * (group.mean(f"{name}_bytes") or 0.0) for name in ("weight", "activation"))
            panel.barh(index, weights, height=0.6, color=style.color)
            panel.barh(index, activations, left=weights, height=0.6, color=style.color, alpha=0.35)
        panel.locator_params(axis="x", nbins=4)
        panel.set(title="weights, activations", xlabel="MB; activations pale")


def courses_of(metric: str | None, groups: Sequence[SweepGroup]) -> list[tuple[str, str]]:
    """(curve, axis) of each course: the main ones, the training loss by time, and all further curves by epoch."""
    first, others = main_courses(metric, groups), dict.fromkeys(_curves(groups))
    rest = [(name, EPOCH) for name in others if name not in {name for name, _ in first}]
    by_time = [(TRAIN_LOSS, axis) for axis in (WALL_S, PREDICTED_S) if TRAIN_LOSS in others]
    return [*first, *_drawable(by_time, groups), *sorted(rest, key=lambda each: each[0] in ALL_THROUGHPUTS)]


def main_courses(metric: str | None, groups: Sequence[SweepGroup]) -> list[tuple[str, str]]:
    """Courses of the ranked column's metric, or of that column itself, and of the training loss."""
    available = _curves(groups)
    ranked = next((name for name in (metric_of(groups, metric), metric) if name in available), None)
    wanted = [(ranked, axis) for axis in AXES] if ranked else []
    wanted += [(TRAIN_LOSS, STEP)] if TRAIN_LOSS in available else []
    return _drawable(wanted, groups)


def _drawable(wanted: Sequence[tuple[str, str]], groups: Sequence[SweepGroup]) -> list[tuple[str, str]]:
    """Those with a line: single points say no more than the final values. By step if that looks unlike by epoch."""
    drawable = [each for each in wanted if any(len(group.course(*each)) > 1 for group in groups)]
    return [
        (name, axis)
        for name, axis in drawable
        if not (axis == STEP and (name, EPOCH) in drawable and _same_by_step(name, groups))
    ]


def _same_by_step(name: str, groups: Sequence[SweepGroup]) -> bool:
    """True if all epochs have the same number of steps, so that a course by step looks as that by epoch."""
    pairs = (
        pair for group in groups for pair in zip(group.course(name, EPOCH), group.course(name, STEP), strict=False)
    )
    return len({round(by_step.x / by_epoch.x, 6) for by_epoch, by_step in pairs}) == 1


def _curves(groups: Sequence[SweepGroup]) -> list[str]:
    return [name for group in groups for run in group.counted for name in run.curves]


def heading(name: str, axis: str) -> str:
    """Title of a course, such as `top1 by epoch`."""
    return f"{quantity(name)} by {_BY[axis]}"


def quantity(name: str) -> str:
    """Label of the values of a course."""
    return column_of(name).head.removeprefix("final ")


def band(name: str, groups: Sequence[SweepGroup]) -> str:
    """Description of lines and bands; only groups with several seeds have bands."""
    counts = sorted({sum(name in run.curves for run in group.counted) for group in groups} - {0, 1})
    if not counts:
        return "one seed each"
    several = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"mean and range of {several} seeds"
