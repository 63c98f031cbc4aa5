"""Colors and line styles of groups: a color for each family of methods, a style for each method of one."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pipetrain.config.choices import choice_of, names_of
from pipetrain.report.style import BLUE, GRAY, GREEN, INK, ORANGE, RED
from pipetrain.report.sweep.groups import SweepGroup

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
