"""Figures of experiments: small multiples of their curves, and bars of what was timed."""

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from papers.svg import FAINT, LETTER, fitting, line, number, rectangle, text, wrapped, write
from pipetrain.reporting.sweep.columns import column_of
from pipetrain.reporting.sweep.compared_run import EPOCH, STEP, TRAIN_LOSS
from pipetrain.reporting.sweep.groups import CoursePoint, SweepGroup
from pipetrain.reporting.sweep.sweep_figure import quantity
from pipetrain.runner.terminal.style import GRAY, INK, RED

_WIDTH, _LEFT, _GAP = 640, 44, 14
_HEIGHT, _ABOVE, _BELOW = 96, 34, 20
_WIDEST = 290
_POINTS = 60
"""Number of points of a curve, which 500 pixels can show."""
_BAR = 15


class Course(NamedTuple):
    """The curve of a configuration.

    Attributes:
        name: of the configuration.
        label: its result.
        points: mean and range over seeds.
        lost: True if no run completed.
    """

    name: str
    label: str
    points: Sequence[CoursePoint]
    lost: bool


def curve_of(groups: Sequence[SweepGroup], metric: str | None) -> tuple[str, str] | None:
    """The curve to draw and its axis: the metric by epoch, or the training loss by step; None if neither is a line."""
    wanted = [(metric, EPOCH), (TRAIN_LOSS, STEP)] if metric else []
    return next((each for each in wanted if any(len(group.course(*each)) > 1 for group in groups)), None)


def draw_courses(path: Path, name: str, axis: str, courses: Sequence[Course], titles: Sequence[str]) -> None:
    """Draws a panel for each configuration, with the others in gray behind it.

    Args:
        path: of the image.
        name: of the curve.
        axis: `epoch` or `step`.
        courses: of all configurations.
        titles: lines above the panels.
    """
    courses = sorted([course for course in courses if course.points], key=lambda course: _order(course.name))
    columns = len(courses) if len(courses) < 5 else 4 if len(courses) in (7, 8) else 3
    width = min(_WIDEST, (_WIDTH - _LEFT) / columns - _GAP)
    panels = _Panels(courses, width, name)
    rows = math.ceil(len(courses) / columns)
    whole = max(_LEFT + columns * (width + _GAP), 480)
    heads = [words for title in (*titles, f"{quantity(name)} by {axis}") for words in wrapped(title, whole - 8)]
    top = 15 * len(heads) + 12
    parts = [panels.defined()]
    parts += [text(4, 14 + 15 * row, words, font_weight="bold" * (row == 0)) for row, words in enumerate(heads)]
    for place, course in enumerate(courses):
        x, y = _LEFT + (place % columns) * (width + _GAP), top + place // columns * (_HEIGHT + _ABOVE + _BELOW)
        parts += panels.drawn(place, course, x, y, first=place % columns == 0)
    write(path, whole, top + 4 + rows * (_HEIGHT + _ABOVE + _BELOW), parts)


class _Panels:
    """Panels of the same axes. Curves are defined once, and used in each panel."""

    def __init__(self, courses: Sequence[Course], width: float, name: str) -> None:
        self._courses, self._width = courses, width
        self._end = max(point.x for course in courses for point in course.points)
        start = min(point.x for course in courses for point in course.points)
        self._start = start if start > 0.1 * self._end else 0.0
        self._low, self._top = _range(courses, higher=column_of(name).higher)

    def defined(self) -> str:
        """The mean of each course."""
        lines = []
        for place, course in enumerate(self._courses):
            points = " ".join(self._place(point.x, point.mean) for point in _thinned(course.points))
            lines.append(f'<polyline id="c{place}" points="{points}" fill="none"/>')
        return f"<defs>{''.join(lines)}</defs>"

    def drawn(self, own: int, course: Course, x: float, y: float, *, first: bool) -> Iterator[str]:
        """The panel of a course, from its upper left corner."""
        yield text(x, y + 12, fitting(course.name, self._width), font_weight="bold")
        yield text(x, y + 26, fitting(course.label, self._width))
        yield f'<g transform="translate({number(x)} {number(y + _ABOVE)})">'
        for value in _ticks(self._low, self._top):
            height = float(self._place(0, value).split(",")[1])
            yield line(0, height, self._width, height, FAINT, 0.6)
            if first:
                yield text(-5, height + 4, f"{value:g}", text_anchor="end", font_size=10)
        yield line(0, _HEIGHT, self._width, _HEIGHT, GRAY, 0.8)
        for value, anchor in ((self._start, ""), (self._end, "end")):
            yield text(self._x(value), _HEIGHT + 13, f"{value:g}", text_anchor=anchor, font_size=10)
        for place in range(len(self._courses)):
            if place != own:
                yield f'<use href="#c{place}" stroke="{FAINT}" stroke-width="1"/>'
        points = _thinned(course.points)
        if any(point.low < point.high for point in points):
            edge = [self._place(point.x, point.low) for point in points]
            edge += [self._place(point.x, point.high) for point in reversed(points)]
            yield f'<polygon points="{" ".join(edge)}" fill="{INK}" fill-opacity="0.22"/>'
        yield f'<use href="#c{own}" stroke="{INK}" stroke-width="1.8"/>'
        if course.lost or len(points) == 1:
            at = self._place(points[-1].x, points[-1].mean).replace(",", " ")
            shape = f'd="M-4-4L4 4M-4 4L4-4" stroke="{RED}" stroke-width="2"'
            shape = shape if course.lost else f'd="M-2 0L2 0" stroke="{INK}" stroke-width="4"'
            yield f'<path transform="translate({at})" {shape}/>'
        yield "</g>"

    def _x(self, value: float) -> float:
        return self._width * (value - self._start) / ((self._end - self._start) or 1.0)

    def _place(self, x: float, value: float) -> str:
        share = (min(max(value, self._low), self._top) - self._low) / ((self._top - self._low) or 1.0)
        return f"{number(self._x(x))},{number(_HEIGHT * (1 - share))}"


def _order(name: str) -> list[float]:
    """Sort key of the values of settings; methods stay in their order."""
    return [float(each) for each in re.findall(r"\d+\.?\d*", name.partition("=")[2])]


def _range(courses: Sequence[Course], *, higher: bool) -> tuple[float, float]:
    """The lowest and highest value of the axis; losses of runs that diverge do not press the others together."""
    sound = [course.points for course in courses if not course.lost] or [course.points[:1] for course in courses]
    values = [end for points in sound for point in points for end in (point.low, point.high)]
    values = [each for each in values if math.isfinite(each)]
    low, top = min(values), max(values)
    if not higher:  # the first losses are far above all others
        later = [point.high for points in sound for point in points[len(points) // 10 :] if math.isfinite(point.high)]
        top = min(top, 1.05 * max(later, default=top))
    return low - 0.04 * (top - low), top + 0.04 * (top - low)


def _thinned(points: Sequence[CoursePoint]) -> list[CoursePoint]:
    """At most `_POINTS` of the points, the first and the last among them."""
    if len(points) <= _POINTS:
        return list(points)
    return [points[round(place * (len(points) - 1) / (_POINTS - 1))] for place in range(_POINTS)]


def _ticks(low: float, top: float) -> list[float]:
    """Two to four round values inside a range."""
    power = 10 ** math.floor(math.log10((top - low) or 1.0))
    step = next(each for each in (5 * power, 2 * power, power, power / 2, power / 5) if (top - low) / each >= 2)
    return [step * place for place in range(math.ceil(low / step), math.floor(top / step) + 1)]


class Bar(NamedTuple):
    """A row of a panel of bars: its name, its length, and the number beside it."""

    name: str
    length: float
    label: str


def draw_bars(path: Path, panels: Sequence[tuple[str, Sequence[Bar]]]) -> None:
    """Draws panels of bars, two side by side, each with its title."""
    width = _WIDTH / 2
    y, parts = 4.0, list[str]()
    for left in range(0, len(panels), 2):
        row = panels[left : left + 2]
        for side, (title, bars) in enumerate(row):
            parts += _bars(side * width + 6, y, width - 12, title, bars)
        y += 26 + _BAR * max(len(bars) for _, bars in row)
    write(path, _WIDTH, y, parts)


def _bars(x: float, y: float, width: float, title: str, bars: Sequence[Bar]) -> Iterator[str]:
    yield text(x, y + 12, fitting(title, width), font_weight="bold")
    names = 10 + 11 * LETTER * max(len(bar.name) for bar in bars)
    longest = max(bar.length for bar in bars)
    for row, bar in enumerate(bars):
        below = y + 18 + _BAR * row
        length = (width - names - 50) * bar.length / longest
        yield text(x + names - 5, below + 11, bar.name, text_anchor="end")
        yield rectangle(x + names, below + 2, length, _BAR - 4, GRAY)
        yield text(x + names + length + 4, below + 11, bar.label)
