"""Timelines as SVG whose boxes name their operation when pointed at, and as a self-contained HTML file with it."""

import io
from collections import defaultdict
from collections.abc import Iterator, Sequence
from html import escape
from itertools import chain
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.schedules import Kind
from pipetrain.reporting.html_page import html_page
from pipetrain.reporting.timeline.panels import (
    FILL,
    INK,
    LINE,
    MESSAGES,
    Box,
    Panel,
    StageRows,
    note,
    number,
    tone,
)
from pipetrain.runner.terminal.style import figure, tooltip
from pipetrain.runner.tracking.files import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_UNIT, _LEAST, _MOST = 0.36, 7.0, 20.0
"""Inches: of a usual operation, and the least and most of the width."""
_ROW, _TITLE, _BAR, _BRACKET = 0.34, 0.36, 0.02, 0.22
_HEIGHT = 0.86
"""Height of a box in rows; the rest is the gap to the next stage."""
_MARGIN = 0.75
_Bar = tuple[float, float, float]
"""Where it begins and ends in time, and its top."""
_POINTED_AT = 0.06
"""Inches of the narrowest box with a tooltip."""
_LETTER, _SMALL_LETTER = 0.095, 0.07
"""Inches of a letter of a title, and of what stands at its right."""


def draw(file: Path | io.StringIO, panels: Sequence[Panel], *, detailed: bool = False) -> None:
    """Writes the panels, one above the other over the same axis of time; stage 0 at the top of each.

    If `detailed`, tooltips have the staleness and the times of their operation, too, and its minibatch as their group.
    """
    span = max(panel.end - panel.begin for panel in panels)
    # a quarter of the boxes is shorter: if this one is wide enough, most labels can be read
    lengths = sorted(box.end - box.start for row in panels[0].rows for box in row if box.operation.kind in FILL)
    width = min(_MOST, max(_LEAST, _UNIT * span / (lengths[len(lengths) // 4] or 1.0)))
    title = _TITLE / _ROW
    height = sum(len(panel.rows) + title for panel in panels)
    with figure(file, (width + _MARGIN,), height * _ROW + 1.1) as (axes,):
        axes.set(xlim=(0, span), ylim=(height, 0))
        axes.grid(visible=False)
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0)
        size = min(10.0, 10.0 * width / (_LETTER * max(len(panel.heading) for panel in panels)))
        top, ticks = 0.0, []
        for panel in panels:
            _panel(axes, panel, top + title, span, width / span, size)
            _tooltips(axes, panel, top + title, width / span, detailed=detailed)
            ticks += [tick for stage in panel.stages for tick in _names(axes, stage, top + title)]
            top += title + len(panel.rows)
        axes.set_yticks([y for y, _ in ticks], [text for _, text in ticks])
        axes.locator_params(axis="x", steps=[1, 2, 5, 10])
        axes.set_xlabel(f"time{f', {panels[0].unit}' if panels[0].unit else ''}")
        _legend(axes, panels, width)


def _names(axes: "Axes", stage: StageRows, top: float) -> Iterator[tuple[float, str]]:
    """Yields (y, label) of the rows of a stage; replicas are numbered, in a bracket with the name of the stage."""
    begin, end = top + stage.first, top + stage.first + stage.rows - 1 + _HEIGHT
    if stage.rows == 1:
        yield (begin + end) / 2, stage.name
        return
    from matplotlib.markers import TICKRIGHT
    from matplotlib.transforms import ScaledTranslation

    beside = axes.get_yaxis_transform() + ScaledTranslation(-_BRACKET, 0, axes.figure.dpi_scale_trans)
    axes.plot(
        [0, 0], [begin, end], transform=beside, clip_on=False,
        color=LINE, linewidth=0.8, marker=TICKRIGHT, markersize=4, markeredgewidth=0.8,
    )  # fmt: skip
    axes.text(-0.003, (begin + end) / 2, stage.name, transform=beside, ha="right", va="center_baseline")
    for replica in range(stage.rows):
        yield begin + replica + _HEIGHT / 2, str(replica)


def _panel(axes: "Axes", panel: Panel, top: float, span: float, inches: float, size: float) -> None:
    axes.text(0, top - 0.28, panel.heading, fontsize=size, fontweight="bold", color=INK, ha="left", va="bottom")
    if panel.facts and span * inches > _LETTER * len(panel.heading) + _SMALL_LETTER * len(panel.facts[0]):
        axes.text(span, top - 0.28, panel.facts[0], fontsize=9, color=LINE, ha="right", va="bottom")
    shown = panel.between(panel.begin, panel.end)
    _bars(axes, [(0, shown.end, top + r) for r in range(len(shown.rows))], "white", edgecolor="#d7dbe0", linewidth=0.6)
    placed = [(box, top + r) for r, row in enumerate(shown.rows) for box in row]
    operations = [(box, y) for box, y in placed if box.operation.kind in FILL]
    colored = defaultdict[str, list[_Bar]](list)
    for box, y in operations:
        colored[_color(shown, box)].append((box.start, box.end, y))
    for color, bars in colored.items():
        _bars(axes, bars, color, edgecolor=LINE, linewidth=0.6)
    # updates can be seen even if they take no time
    least, updates = _BAR / inches, [(box, y) for box, y in placed if box.operation.kind is Kind.UPDATE]
    begins = [min(box.start, box.end - least) for box, _ in updates]
    lengths = [max(least, box.end - box.start) for box, _ in updates]
    _bars(axes, [(x, x + more, y) for x, more, (_, y) in zip(begins, lengths, updates, strict=True)], INK)
    for what, color in MESSAGES.items():
        sent = [(wait, top + r + _HEIGHT) for r, waits in enumerate(shown.messages) for wait in waits]
        _bars(axes, [(wait.start, wait.end, y) for wait, y in sent if wait.what == what], color, (1 - _HEIGHT) / 2)
    for read in (False, True):
        for box, y in operations:
            _label(axes, box, y, shown, inches, read=read)


def _bars(
    axes: "Axes",
    bars: Sequence[_Bar],
    color: str,
    height: float = _HEIGHT,
    *,
    edgecolor: str = "none",
    linewidth: float = 0,
) -> None:
    """Draws bars that do not overlap as one shape, which takes half the bytes of a shape for each."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Outline

    if bars:
        corners = [
            corner
            for begin, end, y in bars
            for corner in ((begin, y), (begin, y + height), (end, y + height), (end, y), (begin, y))
        ]
        codes = [Outline.MOVETO, *[Outline.LINETO] * 3, Outline.CLOSEPOLY] * len(bars)
        outline = Outline(corners, codes)
        axes.add_artist(PathPatch(outline, fc=color, ec=edgecolor, lw=linewidth, joinstyle="round"))


def _color(panel: Panel, box: Box) -> str:
    kind = box.operation.kind
    if panel.placement is None:
        return FILL[kind][box.operation.minibatch % 2]
    return tone(kind, panel.chunk(box), panel.chunks)


def _label(axes: "Axes", box: Box, y: float, panel: Panel, inches: float, *, read: bool) -> None:
    """Writes the minibatch, or the version read, into a box that it fits into."""
    begin, end = max(box.start, 0.0), min(box.end, panel.end)
    middle, width = (begin + end) / 2, (end - begin) * inches
    ink = "white" if 2 * panel.chunk(box) >= panel.chunks > 1 else INK
    text, place, most, weight = box.label(panel.num_microbatches), 0.36, 8.5, "bold"
    if read:
        text, place, most, weight = box.read or "", 0.74, 6.5, "normal"
    size = min(most, (width - 0.03) * 72 / (0.64 * max(1, len(text))))
    if size >= 3.5:
        axes.text(
            middle, y + place * _HEIGHT, text, in_layout=False,
            fontsize=size, fontweight=weight, color=ink, ha="center", va="center_baseline",
        )  # fmt: skip


def _tooltips(axes: "Axes", panel: Panel, top: float, inches: float, *, detailed: bool) -> None:
    """Lays the tooltips of an SVG over the boxes and their labels."""
    from matplotlib.patches import Rectangle

    shown = panel.between(panel.begin, panel.end)
    for r, row in enumerate(shown.rows):
        for box in row:
            begin, end = max(box.start, 0.0), min(box.end, shown.end)
            if box.operation.kind in FILL and (end - begin) * inches >= _POINTED_AT:
                text = _described(box, panel.unit) if detailed else box.name
                text = text if panel.placement is None else f"stage {box.stage}: {text}"
                gid = tooltip(text, box.operation.minibatch if detailed else None)
                cover = Rectangle((begin, top + r), end - begin, _HEIGHT, alpha=0, zorder=4, in_layout=False, gid=gid)
                axes.add_artist(cover).set_clip_on(False)


def _described(box: Box, unit: str) -> str:
    start, end, seconds = (
        f"{number(time)}{f' {unit}' if unit else ''}" for time in (box.start, box.end, box.end - box.start)
    )
    return f"{box.name}: {box.operation.kind.word}, staleness {box.staleness}, from {start} to {end} ({seconds})"


def _legend(axes: "Axes", panels: Sequence[Panel], width: float) -> None:
    """Under the axis of time, `width` inches wide."""
    from matplotlib.patches import Patch

    colors = _colors(panels)
    axes.figure.legend(
        handles=[Patch(facecolor=color, edgecolor=LINE, linewidth=0.6, label=text) for text, color in colors.items()],
        loc="outside lower left", ncols=len(colors), handlelength=1.1, alignment="left",
        title="\n".join(wrap(note(panels), int(width / _LETTER * 1.4))), title_fontsize=8.5,
    )  # fmt: skip


def _colors(panels: Sequence[Panel]) -> dict[str, str]:
    """What the panels show -> its color."""
    kinds = {box.operation.kind for panel in panels for box in chain(*panel.rows)}
    sent = {message.what for panel in panels for message in chain(*panel.messages)}
    colors = {kind.word: light for kind, (light, _) in FILL.items() if kind in kinds}
    waits = {f"{what} of a message": color for what, color in MESSAGES.items() if what in sent}
    chunks = max(panel.chunks for panel in panels)
    tones = {f"chunk {chunk}": tone(None, chunk, chunks) for chunk in range(chunks) if chunks > 1}
    return {**colors, **tones, Kind.UPDATE.word: INK, "idle": "white", **waits}


_BODY = Path(__file__).with_name("timeline_page.html")
_RULES = ".same path { stroke: #c0392b; stroke-width: 2; }\n"
_MOST_BOXES = 50_000


def write_timeline(folder: Path, panels: Sequence[Panel]) -> list[str]:
    """Writes timeline.svg, and timeline.html with the same drawing; returns their names.

    Raises:
        ConfigError: there are too many operations to draw.
    """
    boxes = sum(len(row) for panel in panels for row in panel.rows)
    if boxes > _MOST_BOXES:
        raise ConfigError(f"{boxes:,} operations exceed the limit of {_MOST_BOXES:,}; lower --minibatches")
    folder.mkdir(parents=True, exist_ok=True)
    drawn = io.StringIO()
    draw(drawn, panels, detailed=True)
    write_whole(folder / "timeline.svg", drawn.getvalue())
    write_whole(folder / "timeline.html", _page(panels, drawn.getvalue()))
    return ["timeline.svg", "timeline.html"]


def _page(panels: Sequence[Panel], drawn: str) -> str:
    title = panels[0].title if len(panels) == 1 else "Timelines"
    texts = [("h2" if text is panel.title else "p", text) for panel in panels for text in (panel.title, *panel.facts)]
    facts = "\n".join(f"<{tag}>{escape(text)}</{tag}>" for tag, text in texts)
    body = _BODY.read_text(encoding="utf-8").replace("$FACTS", facts).replace("$DRAWN", drawn)
    return html_page(title, body, _RULES)
