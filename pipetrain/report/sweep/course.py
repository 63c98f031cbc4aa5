"""The course of a metric as inline SVG: for each group a line with its name at the end, and a band over its seeds."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from pipetrain.report.style import GRAY
from pipetrain.report.sweep.colors import Look, looks
from pipetrain.report.sweep.courses import AXIS_LABELS, TIMES, band, heading
from pipetrain.report.sweep.curves import EPOCH, STEP
from pipetrain.report.sweep.end_labels import apart
from pipetrain.report.sweep.groups import CoursePoint, SweepGroup, labels_of
from pipetrain.tracking.throughput import ALL_THROUGHPUTS

_LEFT, _TOP, _WIDTH, _AXIS = 64.0, 8.0, 480.0, 52.0
_LETTER, _BESIDE = 7.8, 22.0
"""Width of a letter, and of what is between the plot and the names, in pixels."""
_LINE, _LEAST = 15.0, 270.0
"""Height of a name, and of the least plot, in pixels."""
_TICKS = 6
_DASHES = {"-": "none", "--": "7 4", ":": "2 3", "-.": "8 3 2 3"}
_Place = Callable[[float], float]


@dataclass(frozen=True)
class _Drawn:
    """A group that is drawn, with its number in the table."""

    index: int
    label: str
    look: Look
    points: Sequence[CoursePoint]


def width_of(groups: Sequence[SweepGroup]) -> float:
    """Pixels that a figure has at least, so that its letters are not drawn smaller than they are set."""
    return math.ceil(_LEFT + _WIDTH + _BESIDE + _LETTER * max(map(len, labels_of(groups)), default=0))


def course(name: str, axis: str, groups: Sequence[SweepGroup]) -> str:
    """The figure of a curve against an axis: means over seeds, and bands from the lowest to the highest."""
    every = enumerate(zip(labels_of(groups), looks(groups), groups, strict=True))
    found = [_Drawn(index, label, look, group.course(name, axis)) for index, (label, look, group) in every]
    drawn = [each for each in found if each.points]
    height = max(_LEAST, _LINE * len(drawn))
    width = width_of(groups)
    start = [0.0] if axis in TIMES else []
    x, places = _scale([*start, *(point.x for each in drawn for point in each.points)], _LEFT, _LEFT + _WIDTH)
    zero = [0.0] if name in ALL_THROUGHPUTS else []
    values = [value for each in drawn for point in each.points for value in (point.low, point.high)]
    y, marks = _scale([*values, *zero], _TOP + height, _TOP)
    ends = [1 - (y(each.points[-1].mean) - _TOP) / height for each in drawn]
    labels = [_TOP + (1 - place) * height for place in apart(ends, _LINE / height)]
    whole = axis in (EPOCH, STEP)
    said = heading(name, axis)
    bottom = _TOP + height
    parts = [
        f"<figure><figcaption>{escape(said)}, {band(name, groups)}</figcaption>"
        f'<svg class="course" data-metric="{escape(name)}" data-axis="{axis}" style="min-width:{width:g}px" '
        f'viewBox="0 0 {width:g} {bottom + _AXIS:g}" role="img" aria-label="{escape(said)}">',
        *(_mark_x(x(tick), tick, bottom) for tick in places if not whole or tick == int(tick) or len(places) < 3),
        *(_mark_y(y(tick), tick) for tick in marks),
        f'<text class="axis" x="{_LEFT + _WIDTH / 2:g}" y="{bottom + 38:.1f}" text-anchor="middle">'
        f"{AXIS_LABELS[axis]}</text>",
        *(_line(each, x, y, label) for each, label in zip(drawn, labels, strict=True)),
        "</svg></figure>",
    ]
    return "\n".join(parts)


def _scale(values: Sequence[float], start: float, end: float) -> tuple[_Place, list[float]]:
    """Where a value lies between two places, and the round ones among them."""
    low, high = min(values), max(values)
    if low == high:
        low, high = low - (abs(low) or 1) / 10, high + (abs(high) or 1) / 10
    margin = 0.02 * (high - low)
    low, high = low - margin if low else low, high + margin
    return lambda value: start + (value - low) / (high - low) * (end - start), _round_values(low, high)


def _round_values(low: float, high: float) -> list[float]:
    rough = (high - low) / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    return [step * count for count in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _mark_x(x: float, tick: float, bottom: float) -> str:
    text = f'<text class="axis" x="{x:.1f}" y="{bottom + 18:.1f}" text-anchor="middle">{tick:g}</text>'
    return f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{bottom:.1f}" y2="{bottom + 4:.1f}" stroke="{GRAY}"/>{text}'


def _mark_y(y: float, value: float) -> str:
    right = _LEFT + _WIDTH
    text = f'<text class="axis" x="{_LEFT - 8:g}" y="{y + 4:.1f}" text-anchor="end">{value:.6g}</text>'
    return f'<line class="grid" x1="{_LEFT:g}" x2="{right:g}" y1="{y:.1f}" y2="{y:.1f}"/>{text}'


def _line(drawn: _Drawn, x: _Place, y: _Place, label_y: float) -> str:
    points, color, beside = drawn.points, drawn.look.color, _LEFT + _WIDTH + _BESIDE
    path = " ".join(f"{x(point.x):.1f},{y(point.mean):.1f}" for point in points)
    end_x, end_y = x(points[-1].x), y(points[-1].mean)
    dot = f'<circle cx="{end_x:.1f}" cy="{end_y:.1f}" r="3" fill="{color}"/>' if len(points) == 1 else ""
    return (
        f'<g data-group="{drawn.index}"><title>{escape(drawn.label)}</title>{_band(points, x, y, color)}'
        f'<polyline points="{path}" fill="none" stroke="{color}" stroke-dasharray="{_DASHES[drawn.look.style]}"/>{dot}'
        f'<line class="thread" x1="{end_x:.1f}" y1="{end_y:.1f}" x2="{beside - 3:g}" y2="{label_y:.1f}" '
        f'stroke="{color}"/><text x="{beside:g}" y="{label_y + 4:.1f}" fill="{color}">{escape(drawn.label)}</text></g>'
    )


def _band(points: Sequence[CoursePoint], x: _Place, y: _Place, color: str) -> str:
    """From the lowest to the highest value of the seeds, where they differ; at a single place a stroke."""
    if all(point.low == point.high for point in points):
        return ""
    around = [(point.x, point.high) for point in points] + [(point.x, point.low) for point in reversed(points)]
    corners = " ".join(f"{x(place):.1f},{y(value):.1f}" for place, value in around)
    return f'<polygon points="{corners}" fill="{color}" stroke="{color if len(points) == 1 else "none"}"/>'
