"""Colors and line styles of groups: a color per family of methods, a style per method in it."""

from collections.abc import Sequence
from dataclasses import dataclass

from pipetrain.report.style import BLUE, GRAY, GREEN, INK, ORANGE, RED
from pipetrain.report.sweep.groups import SweepGroup

VIOLET = "#7b4fa3"
FAMILIES = {
    INK: ("sequential", "gpipe", "pipedream_flush", "data_parallel"),
    GRAY: ("naive_async", "hogwild", "asp"),
    BLUE: ("pipedream", "pipedream_2bw"),
    GREEN: ("spectrain", "pipeoptim", "lwp"),
    ORANGE: ("stale", "stale_hybrid"),
    VIOLET: ("pipemare", "pipemare_w"),
    RED: ("timeprest", "v_timeprest", "i_timeprest"),
}
"""Synchronous; no mitigation; kept versions; prediction; stale gradients; PipeMare; TiMePReSt."""
OTHERS = "#8c5a2b"
"""The color of methods of no family, such as the user's own."""
_STYLES = ("-", "--", ":", "-.")


@dataclass(frozen=True)
class Look:
    """How a group is drawn."""

    color: str
    style: str


def looks(groups: Sequence[SweepGroup]) -> list[Look]:
    """The look of each group; groups of one method alone differ in color."""
    return looks_of([group.method for group in groups])


def looks_of(methods: Sequence[str]) -> list[Look]:
    """The look of each method; where all are the same they differ in color."""
    if len(set(methods)) == 1:
        colors = list(FAMILIES)
        return [Look(colors[i % len(colors)], _STYLES[i // len(colors) % len(_STYLES)]) for i in range(len(methods))]
    taken: dict[str, int] = {}
    found = []
    for method in methods:
        color = next((color for color, family in FAMILIES.items() if method in family), OTHERS)
        found.append(Look(color, _STYLES[taken.get(color, 0) % len(_STYLES)]))
        taken[color] = taken.get(color, 0) + 1
    return found
