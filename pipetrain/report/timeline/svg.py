"""Draws what each stage does when, as an SVG: the very operation lists that a run carries out, and what each reads.

    python scripts/draw_schedule.py "method=pipeoptim partition.stages=4" -o picture.svg
    python scripts/draw_schedule.py "method=gpipe train.microbatches=4" "method=pipedream" --units 20 -o picture.svg

Each quoted argument is one panel: the settings that `pipetrain run` would get. Time goes to the right, one row for each
stage; a forward takes one unit, a backward `--backward` units (1), an update and a message none. A box bears the
minibatch (with N > 1 minibatch.microbatch) and the weight version that it reads: `v1` version 1, `v1+3` version 1
predicted three updates ahead. A bar at the end of a backward is the update. White is idle. Versions count from 0, the
weights at the last drain. `--minibatches M` draws exactly M of them with the drain behind; without it the pipeline goes
on at the right edge. Several phases are one panel each. The idle share in a panel's title is that of a minibatch in
steady state.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from pipetrain.executors.phase import PipelineRules
from pipetrain.program.playback import Slice, play
from pipetrain.program.steady_state import steady_state
from pipetrain.program.times import StageTimes
from pipetrain.report.timeline.panels import FILL, INK, LINE, WORDS, Box, boxes, note
from pipetrain.run.compose import ComposedPhase, composed_phases
from pipetrain.schedules import Kind

UNIT, ROW, GAP = 32.0, 32.0, 4.0
LEFT, RIGHT, TOP, TITLE, LEGEND = 62.0, 10.0, 8.0, 26.0, 46.0
BAR = 3.0
FONT = "Helvetica, Arial, 'Liberation Sans', sans-serif"


@dataclass(frozen=True)
class Panel:
    """One schedule and method."""

    title: str
    num_stages: int
    num_microbatches: int
    rows: list[list[Box]]
    end: float


def panels_of(settings: str, units: float, minibatches: int | None, backward: float) -> list[Panel]:
    """A panel for each phase of some settings of `pipetrain run`, see `panel`."""
    return [panel(settings, units, minibatches, backward, phase) for phase in range(len(phases_of(settings)))]


def panel(settings: str, units: float, minibatches: int | None, backward: float, phase: int = 0) -> Panel:
    """The panel for a phase of some settings of `pipetrain run`, cut at `units` unless `minibatches` are given."""
    phases = phases_of(settings)
    part = phases[phase]
    rules, times = part.rules, durations(part.rules, backward)
    count = minibatches or int(units) + rules.num_stages
    rows = [list(boxes(slices, rules.readings(r, count))) for r, slices in enumerate(played(rules, times, count))]
    end = max(box.end for row in rows for box in row) if minibatches else units
    shown = ("method=", "schedule=", "partition.stages=", "train.microbatches=", "phases=")
    options = [each for each in settings.split() if not each.startswith(shown)]
    chosen = [f"method={part.names['method']}", f"schedule={part.names['schedule']}", *options]
    title = f"{', '.join(chosen)}, D = {rules.num_stages}, N = {rules.num_microbatches}"
    title = f"phase {phase}: {title}" if len(phases) > 1 else title
    share = steady_idle_share(rules, times)
    return Panel(
        f"{title}: idle share {share:.0%}" if share >= 0.005 else f"{title}: no idle share once filled",
        rules.num_stages,
        rules.num_microbatches,
        [[box for box in row if box.start < end or box.end <= end] for row in rows],
        end,
    )


def phases_of(settings: str) -> list[ComposedPhase]:
    """What these settings of `pipetrain run` choose, by phase."""
    return composed_phases(settings.split())


def rules_of(settings: str) -> ComposedPhase:
    """The first phase of these settings."""
    return phases_of(settings)[0]


def durations(rules: PipelineRules, backward: float) -> StageTimes:
    """One unit for a forward, `backward` for a backward, nothing for an update and a message."""
    ones, none = [1.0] * rules.num_stages, [0.0] * rules.num_stages
    return StageTimes(ones, ones, [backward] * rules.num_stages, none, rules.num_microbatches, none, none)


def played(rules: PipelineRules, times: StageTimes, minibatches: int) -> list[list[Slice]]:
    """The slices of every stage."""
    return play(rules.lists(minibatches), times.duration, rules.segments, times.transfer)


def steady_idle_share(rules: PipelineRules, times: StageTimes) -> float:
    """The idle share of all stages together in steady state."""
    N = rules.num_microbatches
    steady = steady_state(rules.schedule, rules.num_stages, N, lambda minibatches: played(rules, times, minibatches))
    return sum(steady.idle) / len(steady.idle)


def svg(panels: Sequence[Panel]) -> str:
    """The panels below each other."""
    width = LEFT + max(each.end for each in panels) * UNIT + RIGHT
    height = TOP
    parts: list[str] = []
    for each in panels:
        parts += _panel(each, height)
        height += TITLE + each.num_stages * ROW + 2 * GAP
    kinds = {box.operation.kind for each in panels for row in each.rows for box in row}
    parts += _legend(height + GAP, kinds, note(panels))
    height += LEGEND
    label = escape("; ".join(each.title for each in panels))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" font-family="{FONT}" role="img">'
    )
    background = f'<rect width="{width:g}" height="{height:g}" fill="#ffffff"/>'
    return "\n".join([head, f"<title>{label}</title>", background, *parts, "</svg>", ""])


def _panel(each: Panel, top: float) -> Iterator[str]:
    size = _fitting(each.title, 13, LEFT + each.end * UNIT)
    yield _text(8, top + 17, each.title, size, anchor="start", weight="bold")
    for r in range(each.num_stages):
        y = top + TITLE + r * ROW
        yield _text(8, y + ROW / 2 + 4, f"stage {r}", 12, anchor="start")
        yield (
            f'<rect x="{LEFT:g}" y="{y:g}" width="{each.end * UNIT:g}" height="{ROW - GAP:g}" fill="#ffffff" '
            f'stroke="#d7dbe0" stroke-width="0.75"/>'
        )
    for r, row in enumerate(each.rows):
        for box, behind in zip(row, [*row[1:], None], strict=True):
            if box.operation.kind is not Kind.UPDATE:
                updates = behind is not None and behind.operation.kind is Kind.UPDATE
                yield from _box(box, each, top + TITLE + r * ROW, updates)


def _box(box: Box, each: Panel, y: float, updates: bool) -> Iterator[str]:
    x, end = LEFT + box.start * UNIT, LEFT + min(box.end, each.end) * UNIT
    label, read = box.label(each.num_microbatches), box.read or ""
    fill = FILL[box.operation.kind][box.operation.minibatch % 2]
    yield f"<g><title>{escape(box.name)}</title>"
    yield (
        f'<rect x="{x:g}" y="{y:g}" width="{end - x:g}" height="{ROW - GAP:g}" fill="{fill}" stroke="{LINE}" '
        f'stroke-width="0.75"/>'
    )
    if updates:
        end -= BAR
        yield f'<rect x="{end:g}" y="{y:g}" width="{BAR:g}" height="{ROW - GAP:g}" fill="{INK}"/>'
    yield _text((x + end) / 2, y + 12.5, label, _fitting(label, 12, end - x), weight="bold")
    yield _text((x + end) / 2, y + 24, read, _fitting(read, 10, end - x))
    yield "</g>"


def _legend(y: float, kinds: set[Kind], words: str) -> Iterator[str]:
    x = LEFT
    widths = {Kind.FORWARD: 76.0, Kind.RECOMPUTATION: 118.0, Kind.BACKWARD: 86.0}
    drawn = [(FILL[kind][0], WORDS[kind], width) for kind, width in widths.items() if kind in kinds]
    for colour, text, width in (*drawn, ("#ffffff", "idle", 52.0), (INK, "update", 66.0)):
        box = (3.0, x + 9) if colour == INK else (12.0, x)
        yield (
            f'<rect x="{box[1]:g}" y="{y:g}" width="{box[0]:g}" height="12" fill="{colour}" stroke="{LINE}" '
            f'stroke-width="0.75"/>'
        )
        yield _text(x + 17, y + 10, text, 11, anchor="start")
        x += width
    yield _text(LEFT, y + 28, words, 11, anchor="start")


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
    picture = options.units, options.minibatches, options.backward
    panels = [each for settings in options.settings for each in panels_of(settings, *picture)]
    options.output.write_text(svg(panels), encoding="utf-8")
    print(options.output)


if __name__ == "__main__":
    main()
