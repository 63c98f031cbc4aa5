"""Draws what each stage does when, as an SVG: the very operation lists that a run carries out, and what each reads.

    python scripts/draw_schedule.py "method=pipeoptim partition.stages=4" -o picture.svg
    python scripts/draw_schedule.py "method=gpipe train.microbatches=4" "method=pipedream" --units 20 -o picture.svg

Each quoted argument is one panel: the settings that `pipetrain run` would get. Time goes to the right, one row for each
stage; a forward takes one unit, a backward `--backward` units (1), an update and a message none. A box bears the
minibatch (with N > 1 minibatch.microbatch) and the weight version that it reads: `v1` version 1, `v1+3` version 1
predicted three updates ahead. A bar at the end of a backward is the update. White is idle. Versions count from 0, the
weights at the last drain. `--minibatches M` draws exactly M of them with the drain behind; without it the pipeline goes
on at the right edge. The idle share in a panel's title is that of a minibatch in steady state.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from pipetrain.build import build_rules
from pipetrain.catalog import check_pair
from pipetrain.config import config_dir, register_schema
from pipetrain.executors.base import Rules
from pipetrain.schedules import Kind, Operation
from pipetrain.schedules.timeline import Slice, play

UNIT, ROW, GAP = 32.0, 32.0, 4.0
LEFT, RIGHT, TOP, TITLE, LEGEND = 62.0, 10.0, 8.0, 26.0, 46.0
FILL = {Kind.FORWARD: ("#c6dbf3", "#a3c3e8"), Kind.BACKWARD: ("#fbdcb4", "#f4c285")}
"""By parity of the minibatch."""
LINE, INK = "#5b6470", "#14181d"
FONT = "Helvetica, Arial, 'Liberation Sans', sans-serif"


@dataclass(frozen=True)
class Box:
    """One forward or backward as it is drawn; times in units."""

    stage: int
    start: float
    end: float
    operation: Operation
    read: str
    updates: bool
    """Whether the stage's update follows at once."""


@dataclass(frozen=True)
class Panel:
    """One schedule and method."""

    title: str
    stages: int
    microbatches: int
    boxes: list[Box]
    end: float


def panel(settings: str, units: float, minibatches: int | None, backward: float) -> Panel:
    """The panel for some settings of `pipetrain run`, cut at `units` unless `minibatches` are given."""
    rules, names = rules_of(settings)
    duration = durations(backward)
    count = minibatches or int(units) + rules.stages
    played = play(rules.lists(count), duration)
    boxes = [box for r, slices in enumerate(played) for box in boxes_of(rules, r, slices, count)]
    end = max(box.end for box in boxes) if minibatches else units
    shown = ("method=", "schedule=", "partition.stages=", "train.microbatches=")
    options = [each for each in settings.split() if not each.startswith(shown)]
    chosen = [f"method={names['method']}", f"schedule={names['schedule']}", *options]
    title = f"{', '.join(chosen)}, D = {rules.stages}, N = {rules.microbatches}"
    share = steady_idle_share(rules, duration)
    return Panel(
        f"{title}: idle share {share:.0%}" if share >= 0.005 else f"{title}: no idle share once filled",
        rules.stages,
        rules.microbatches,
        [box for box in boxes if box.start < end],
        end,
    )


def rules_of(settings: str) -> tuple[Rules, dict[str, str]]:
    """The schedule and method that these settings of `pipetrain run` choose, and the names of both."""
    register_schema()
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        composed = compose("config", settings.split(), return_hydra_config=True)
    names = {str(group): str(choice) for group, choice in composed.hydra.runtime.choices.items()}
    config: Any = OmegaConf.to_container(composed, resolve=False)
    rules = build_rules(config, config["partition"]["stages"])
    check_pair(rules.method, rules.schedule, names)
    return rules, names


def durations(backward: float) -> Callable[[int, Operation], float]:
    """One unit for a forward, `backward` for a backward, nothing for an update."""
    units = {Kind.FORWARD: 1.0, Kind.BACKWARD: backward, Kind.UPDATE: 0.0}
    return lambda stage, operation: units[operation.kind]


def boxes_of(rules: Rules, stage: int, slices: Sequence[Slice], minibatches: int) -> Iterator[Box]:
    """What to draw of one stage's slices."""
    reads = rules.readings(stage, minibatches).reads
    for index, (piece, read) in enumerate(zip(slices, reads, strict=True)):
        if read is not None:
            behind = slices[index + 1].operation.kind if index + 1 < len(slices) else None
            yield Box(stage, piece.start, piece.end, piece.operation, str(read), behind is Kind.UPDATE)


def steady_idle_share(rules: Rules, duration: Callable[[int, Operation], float]) -> float:
    """The idle share from one update to the next, of all stages together, far from the last drain and the next."""
    held = -(-rules.schedule.in_flight(0, rules.stages, rules.microbatches) // rules.microbatches)
    filled = 2 * held + rules.stages
    played = play(rules.lists(filled + 2 * (held + rules.stages)), duration)
    busy = period = 0.0
    for slices in played:
        ends = {piece.operation.minibatch: piece.end for piece in slices if piece.operation.kind is Kind.UPDATE}
        first, last = ends[filled], ends[filled + rules.stages]
        period += last - first
        busy += sum(min(piece.end, last) - max(piece.start, first) for piece in slices if first < piece.end <= last)
    return 1.0 - busy / period


def svg(panels: Sequence[Panel]) -> str:
    """The panels below each other."""
    width = LEFT + max(each.end for each in panels) * UNIT + RIGHT
    height = TOP
    parts: list[str] = []
    for each in panels:
        parts += _panel(each, height)
        height += TITLE + each.stages * ROW + 2 * GAP
    parts += _legend(height + GAP)
    height += LEGEND
    label = escape("; ".join(each.title for each in panels))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" font-family="{FONT}" role="img">'
    )
    background = f'<rect width="{width:g}" height="{height:g}" fill="#ffffff"/>'
    return "\n".join([head, f"<title>{label}</title>", background, *parts, "</svg>", ""])


def _panel(each: Panel, top: float) -> Iterator[str]:
    yield _text(8, top + 17, each.title, 13, anchor="start", weight="bold")
    for r in range(each.stages):
        y = top + TITLE + r * ROW
        yield _text(8, y + ROW / 2 + 4, f"stage {r}", 12, anchor="start")
        yield (
            f'<rect x="{LEFT:g}" y="{y:g}" width="{each.end * UNIT:g}" height="{ROW - GAP:g}" fill="#ffffff" '
            f'stroke="#d7dbe0" stroke-width="0.75"/>'
        )
    for box in each.boxes:
        yield from _box(box, each, top + TITLE + box.stage * ROW)


def _box(box: Box, each: Panel, y: float) -> Iterator[str]:
    x, end = LEFT + box.start * UNIT, LEFT + min(box.end, each.end) * UNIT
    operation = box.operation
    label = f"{operation.minibatch}.{operation.microbatch}" if each.microbatches > 1 else str(operation.minibatch)
    fill = FILL[operation.kind][operation.minibatch % 2]
    yield f"<g><title>{escape(f'{operation}@{box.read}')}</title>"
    yield (
        f'<rect x="{x:g}" y="{y:g}" width="{end - x:g}" height="{ROW - GAP:g}" fill="{fill}" stroke="{LINE}" '
        f'stroke-width="0.75"/>'
    )
    yield _text((x + end) / 2, y + 12.5, label, _fitting(label, 12, end - x), weight="bold")
    yield _text((x + end) / 2, y + 24, box.read, _fitting(box.read, 10, end - x))
    if box.updates:
        yield f'<rect x="{end - 3:g}" y="{y:g}" width="3" height="{ROW - GAP:g}" fill="{INK}"/>'
    yield "</g>"


def _legend(y: float) -> Iterator[str]:
    x = LEFT
    for colour, text, width in (
        (FILL[Kind.FORWARD][0], "forward", 76.0),
        (FILL[Kind.BACKWARD][0], "backward", 86.0),
        ("#ffffff", "idle", 52.0),
        (INK, "update", 66.0),
    ):
        box = (3.0, x + 9) if colour == INK else (12.0, x)
        yield (
            f'<rect x="{box[1]:g}" y="{y:g}" width="{box[0]:g}" height="12" fill="{colour}" stroke="{LINE}" '
            f'stroke-width="0.75"/>'
        )
        yield _text(x + 17, y + 10, text, 11, anchor="start")
        x += width
    note = "In a box: minibatch (or minibatch.microbatch); weight version read (+s: predicted s updates ahead)"
    yield _text(LEFT, y + 28, note, 11, anchor="start")


def _fitting(text: str, size: float, width: float) -> float:
    """The font size at which the text fits, in any of the usual typefaces, at most `size`."""
    return min(size, (width - 3) / (0.62 * len(text)))


def _text(x: float, y: float, text: str, size: float, anchor: str = "middle", weight: str = "normal") -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size:.3g}" font-weight="{weight}" text-anchor="{anchor}" '
        f'fill="{INK}">{escape(text)}</text>'
    )


def main() -> None:
    """Reads the command line and writes the picture."""
    parser = argparse.ArgumentParser(description="Draws schedules as they run; see the head of this file.")
    parser.add_argument("settings", nargs="+", help='settings of `pipetrain run`, such as "method=gpipe"')
    parser.add_argument("-o", "--output", type=Path, required=True, help="the SVG file")
    parser.add_argument("--units", type=float, default=28.0, help="length of the picture in forwards")
    parser.add_argument("--minibatches", type=int, help="draw these many with their drain, whatever their length")
    parser.add_argument("--backward", type=float, default=1.0, help="length of a backward in forwards")
    options = parser.parse_args()
    panels = [panel(each, options.units, options.minibatches, options.backward) for each in options.settings]
    options.output.write_text(svg(panels), encoding="utf-8")
    print(options.output)


if __name__ == "__main__":
    main()
