"""Styles of lines, and names at their ends."""

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from pipetrain.runner.config.choices import choice_of, names_of
from pipetrain.runner.terminal.style import BLUE, GRAY, GREEN, INK, ORANGE, RED

if TYPE_CHECKING:
    from matplotlib.axes import Axes


FAMILIES = {
    "synchronous": INK,
    "unmitigated": GRAY,
    "stashing": BLUE,
    "prediction": GREEN,
    "stale gradients": ORANGE,
    "PipeMare": "#7b4fa3",
    "TiMePReSt": RED,
}
"""Family, as the file of a method names it -> color."""
OTHERS = "#8c5a2b"
"""The color of methods of no family, or of another, such as the user's own."""
_PALEST, _STEP = 0.6, 0.4
"""The share of white in the palest line of a family, and the largest step from one line to the next."""
_DASHES = ("-", "--", ":", "-.")


class LineStyle(NamedTuple):
    """Color and dashes of a line, in matplotlib's notation."""

    color: str
    dashes: str


def line_styles(methods: Sequence[str]) -> list[LineStyle]:
    """The style of each method, in a shade of its family's color; if all methods are the same, the colors differ."""
    if len(set(methods)) == 1:
        families = list(FAMILIES.values())
        colors = [families[i % len(families)] for i in range(len(methods))]
    else:
        colors = [_color(method) for method in methods]
    places = [(color, colors[:index].count(color), colors.count(color)) for index, color in enumerate(colors)]
    return [LineStyle(_shade(*each), _DASHES[each[1] % len(_DASHES)]) for each in places]


def _shade(color: str, number: int, count: int) -> str:
    """The color with more white, the higher the number of a line is among those that share it."""
    white = number * min(_STEP, _PALEST / max(1, count - 1))
    parts = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(part + white * (255 - part)):02x}" for part in parts)


def _color(method: str) -> str:
    family = choice_of("method", method).remarks.get("family") if method in names_of("method") else None
    return FAMILIES.get(family or "", OTHERS)


_LINE, _ASIDE = 1.15, 1.06
_THREAD = {
    "arrowstyle": "-",
    "linestyle": ":",
    "linewidth": 0.9,
    "alpha": 0.6,
    "shrinkA": 1,
    "shrinkB": 1,
    "relpos": (0, 0.5),
    "patchA": None,  # it begins at the edge of the name: clipping it there takes half of the time for hundreds of names
}
_POINTS = 0.78 * 72
"""Points of a panel, without title and axis, per inch of the figure."""


class End(NamedTuple):
    """The end of a line, with its name and color, and the `gid` of the name in an SVG."""

    x: float
    y: float
    name: str
    color: str
    gid: str | None = None


def label_ends(panel: "Axes", ends: Sequence[End]) -> None:
    """Writes the names to the right of the panel, each joined to the end of its line."""
    if not ends:
        return
    height = _POINTS * panel.figure.bbox.height / panel.figure.dpi
    size = max(5.0, min(8.5, height / len(ends) / _LINE))
    low, high = panel.get_ylim()
    panel.set_ylim(low, high)  # names must not move what they are joined to
    places = spread_labels([(end.y - low) / (high - low) for end in ends], size * _LINE / height)
    for end, place in zip(ends, places, strict=True):
        label = panel.annotate(
            end.name, (end.x, end.y), (_ASIDE, place), xycoords="data", textcoords="axes fraction",
            fontsize=size, color=end.color, va="center", arrowprops={**_THREAD, "color": end.color, "gid": end.gid},
        )  # fmt: skip
        label.set_gid(end.gid)


def spread_labels(wanted: Sequence[float], gap: float) -> list[float]:
    """Places around the wanted ones, in their order, `gap` or more from each other, within 0 to 1 where they fit."""
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    rising = [wanted[index] for index in order]
    up = accumulate(rising, lambda below, place: max(place, below + gap))
    down = [*accumulate(reversed(rising), lambda above, place: min(place, above - gap))][::-1]
    # the mean of both, moved down as far as the upper edge demands, then up as far as the lower edge does
    highest = [1.0 - gap * number for number in reversed(range(len(rising)))]
    capped = [min((low + high) / 2, limit) for low, high, limit in zip(up, down, highest, strict=True)]
    places = [max(place, min(gap * number, highest[number])) for number, place in enumerate(capped)]
    return [place for _, place in sorted(zip(order, places, strict=True))]
