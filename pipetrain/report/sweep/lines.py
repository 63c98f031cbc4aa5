"""The lines of groups: colors, dashes, and names at their ends."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pipetrain.config.choices import choice_of, names_of
from pipetrain.report.style import BLUE, GRAY, GREEN, INK, ORANGE, RED
from pipetrain.report.sweep.groups import SweepGroup

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
"""The color of methods without a family, such as the user's own."""
_DASHES = ("-", "--", ":", "-.")


@dataclass(frozen=True)
class LineStyle:
    """Color and dashes of a line, as matplotlib calls them."""

    color: str
    dashes: str


def group_styles(groups: Sequence[SweepGroup]) -> list[LineStyle]:
    """The style of each group; groups of a single method differ in color."""
    return line_styles([group.method for group in groups])


def line_styles(methods: Sequence[str]) -> list[LineStyle]:
    """The style of each method; if all are the same, they differ in color."""
    if len(set(methods)) == 1:
        colors = list(FAMILIES.values())
        return [LineStyle(colors[i % len(colors)], _dashes(i // len(colors))) for i in range(len(methods))]
    colors = [_color(method) for method in methods]
    taken = Counter[str]()
    found = []
    for color in colors:
        found.append(LineStyle(color, _dashes(taken[color])))
        taken[color] += 1
    return found


def _color(method: str) -> str:
    family = choice_of("method", method).remarks.get("family") if method in names_of("method") else None
    return OTHERS if family is None else FAMILIES[family]


def _dashes(number: int) -> str:
    return _DASHES[number % len(_DASHES)]


_LINE, _ASIDE = 1.15, 1.06
_THREAD = {
    "arrowstyle": "-",
    "linestyle": ":",
    "linewidth": 0.9,
    "alpha": 0.6,
    "shrinkA": 1,
    "shrinkB": 1,
    "relpos": (0, 0.5),
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
    up = _spread(rising, gap)
    down = [-place for place in _spread([-place for place in reversed(rising)], gap)][::-1]
    middle = [(above + below) / 2 for above, below in zip(up, down, strict=True)]
    highest = [1.0 - gap * number for number in reversed(range(len(middle)))]
    capped = [min(place, limit) for place, limit in zip(middle, highest, strict=True)]
    lowest = [min(gap * number, limit) for number, limit in enumerate(highest)]
    kept = [max(place, limit) for place, limit in zip(capped, lowest, strict=True)]
    return [place for _, place in sorted(zip(order, kept, strict=True))]


def _spread(rising: Sequence[float], gap: float) -> list[float]:
    """The places, each moved up as far as the one below it demands."""
    places: list[float] = []
    for place in rising:
        places.append(max(place, places[-1] + gap) if places else place)
    return places
