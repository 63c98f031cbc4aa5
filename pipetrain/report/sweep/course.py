"""The course of a metric as inline SVG: a line for each group, with its name at its end."""

import math
from collections.abc import Callable, Sequence
from html import escape

from pipetrain.report.style import GRAY
from pipetrain.report.sweep.colors import Look, looks
from pipetrain.report.sweep.columns import column_of
from pipetrain.report.sweep.compared_run import Curve
from pipetrain.report.sweep.end_labels import apart
from pipetrain.report.sweep.groups import SweepGroup
from pipetrain.report.text_table import shortened

_LEFT, _TOP, _WIDTH, _NAMES, _AXIS = 64.0, 8.0, 560.0, 340.0, 34.0
_LINE, _LEAST = 15.0, 300.0
"""Height of a name, and of the least plot, in pixels."""
_LONGEST_NAME = 40
_TICKS = 6
_DASHES = {"-": "none", "--": "7 4", ":": "2 3", "-.": "8 3 2 3"}
_Place = Callable[[float], float]


def course(name: str, groups: Sequence[SweepGroup]) -> str:
    """The figure of a metric or throughput, the mean over seeds."""
    lines = [(index, group, look) for index, (group, look) in enumerate(zip(groups, looks(groups), strict=True))]
    drawn = [(index, group, look, curve) for index, group, look in lines if (curve := group.curve(name))]
    height = max(_LEAST, _LINE * len(drawn))
    x, epochs = _scale([epoch for *_, curve in drawn for epoch, _ in curve], _LEFT, _LEFT + _WIDTH)
    y, values = _scale([value for *_, curve in drawn for _, value in curve], _TOP + height, _TOP)
    ends = [1 - (y(curve[-1][1]) - _TOP) / height for *_, curve in drawn]
    names = [_TOP + (1 - place) * height for place in apart(ends, _LINE / height)]
    head = column_of(name).head.removeprefix("final ")
    size = f"0 0 {_LEFT + _WIDTH + _NAMES:g} {_TOP + height + _AXIS:g}"
    parts = [
        f"<figure><figcaption>{escape(head)} by epoch, mean over seeds</figcaption>"
        f'<svg class="course" data-metric="{escape(name)}" viewBox="{size}" role="img" aria-label="{escape(head)}">',
        *(_mark_x(x(tick), tick, height) for tick in epochs if tick == int(tick) or len(epochs) < 3),
        *(_mark_y(y(tick), tick) for tick in values),
        *(
            _line(index, group.name, look, [(x(epoch), y(value)) for epoch, value in curve], at)
            for (index, group, look, curve), at in zip(drawn, names, strict=True)
        ),
        "</svg></figure>",
    ]
    return "\n".join(parts)


def _scale(values: Sequence[float], start: float, end: float) -> tuple[_Place, list[float]]:
    """Where a value lies between two places, and the round ones among them."""
    low, high = min(values), max(values)
    if low == high:
        low, high = low - (abs(low) or 1) / 10, high + (abs(high) or 1) / 10
    margin = 0.02 * (high - low)
    low, high = low - margin, high + margin
    return lambda value: start + (value - low) / (high - low) * (end - start), _round_values(low, high)


def _round_values(low: float, high: float) -> list[float]:
    rough = (high - low) / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    return [step * count for count in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _mark_x(x: float, epoch: float, height: float) -> str:
    bottom = _TOP + height
    text = f'<text class="axis" x="{x:.1f}" y="{bottom + 18:.1f}" text-anchor="middle">{epoch:g}</text>'
    return f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{bottom:.1f}" y2="{bottom + 4:.1f}" stroke="{GRAY}"/>{text}'


def _mark_y(y: float, value: float) -> str:
    right = _LEFT + _WIDTH
    text = f'<text class="axis" x="{_LEFT - 8:g}" y="{y + 4:.1f}" text-anchor="end">{value:.6g}</text>'
    return f'<line class="grid" x1="{_LEFT:g}" x2="{right:g}" y1="{y:.1f}" y2="{y:.1f}"/>{text}'


def _line(index: int, name: str, look: Look, points: Curve, name_y: float) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    (x, y), beside = points[-1], _LEFT + _WIDTH + 22
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{look.color}"/>' for x, y in points[:1])
    return (
        f'<g data-group="{index}"><title>{escape(name)}</title>'
        f'<polyline points="{path}" fill="none" stroke="{look.color}" stroke-dasharray="{_DASHES[look.style]}"/>'
        f"{dots if len(points) == 1 else ''}"
        f'<line class="thread" x1="{x:.1f}" y1="{y:.1f}" x2="{beside - 3:g}" y2="{name_y:.1f}" stroke="{look.color}"/>'
        f'<text x="{beside:g}" y="{name_y + 4:.1f}" fill="{look.color}">'
        f"{escape(shortened(name, _LONGEST_NAME))}</text></g>"
    )
