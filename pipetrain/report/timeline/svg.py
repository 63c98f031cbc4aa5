"""Timelines as an SVG, small and sharp, for pages of text."""

from collections.abc import Iterator, Sequence
from html import escape

from pipetrain.report.timeline.panels import (
    FILL,
    INK,
    LINE,
    MESSAGES,
    WORDS,
    Box,
    Message,
    Panel,
    StageRows,
    kinds_of,
    message_colors,
    note,
    usual_length,
)
from pipetrain.schedules import Kind

_ROW, _GAP = 32.0, 4.0
_LEFT, _RIGHT, _TOP, _TITLE, _LEGEND = 62.0, 10.0, 8.0, 26.0, 46.0
_BAR, _BRACKET = 3.0, 50.0
_UNIT, _MOST = 32.0, 3000.0
"""Pixels: of the unit that a panel counts in, and of the widest drawing."""
_FONT = "Helvetica, Arial, 'Liberation Sans', sans-serif"
_LEGEND_WIDTHS = {Kind.FORWARD: 76.0, Kind.RECOMPUTATION: 118.0, Kind.BACKWARD: 86.0}


def svg(panels: Sequence[Panel]) -> str:
    """The panels one above the other, each with its idle share in the title."""
    shown = [panel.between(panel.begin, panel.end) for panel in panels]
    pixels = _pixels(shown)
    width = _LEFT + max(panel.end for panel in shown) * pixels + _RIGHT
    height = _TOP
    parts: list[str] = []
    for panel in shown:
        parts += _panel(panel, height, pixels)
        height += _TITLE + len(panel.rows) * _ROW + 2 * _GAP
    parts += _legend(height + _GAP, shown)
    height += _LEGEND
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" font-family="{_FONT}" role="img">'
    )
    title = f"<title>{escape('; '.join(map(_title, shown)))}</title>"
    background = f'<rect width="{width:g}" height="{height:g}" fill="#ffffff"/>'
    return "\n".join([head, title, background, *parts, "</svg>", ""])


def _pixels(panels: Sequence[Panel]) -> float:
    """Of a unit of time: so many that labels can be read."""
    most = (_MOST - _LEFT - _RIGHT) / max(panel.end for panel in panels)
    return min(_UNIT / usual_length(panels), most)


def _title(panel: Panel) -> str:
    if panel.idle_share is None:
        return panel.title
    share = f"idle share {panel.idle_share:.0%}" if panel.idle_share >= 0.005 else "no idle share once filled"
    return f"{panel.title}: {share}"


def _panel(panel: Panel, top: float, pixels: float) -> Iterator[str]:
    title, width = _title(panel), panel.end * pixels
    yield _text(8, top + 17, title, _fitting(title, 13, _LEFT + width), anchor="start", weight="bold")
    for stage in panel.stages:
        yield from _names(stage, top + _TITLE)
        for r in range(stage.first, stage.first + stage.count):
            yield _rect(_LEFT, top + _TITLE + r * _ROW, width, _ROW - _GAP, "#ffffff", "#d7dbe0")
    for r, row in enumerate(panel.rows):
        yield from _row(row, panel, top + _TITLE + r * _ROW, pixels)
    for r, messages in enumerate(panel.messages):
        for message in messages:
            x, end = _within(message, panel, pixels)
            yield _rect(x, top + _TITLE + (r + 1) * _ROW - _GAP + 1, end - x, _GAP - 2, MESSAGES[message.what])


def _names(stage: StageRows, top: float) -> Iterator[str]:
    """The name of a stage at the left, and the numbers of its replicas in a bracket."""
    several = stage.count > 1
    size = _fitting(stage.name, 12, _BRACKET if several else _LEFT)
    yield _text(8, top + stage.middle * _ROW + 4, stage.name, size, anchor="start")
    if several:
        y = top + stage.first * _ROW
        line = f"M{_BRACKET + 3:g} {y:g}h-3v{stage.count * _ROW - _GAP:g}h3"
        yield f'<path d="{line}" fill="none" stroke="{LINE}"/>'
        for replica in range(stage.count):
            yield _text(_LEFT - 5, y + (replica + 0.5) * _ROW + 2, str(replica), 10)


def _row(row: Sequence[Box], panel: Panel, y: float, pixels: float) -> Iterator[str]:
    """The boxes of a stage; an update that takes no time is a bar, at the end of a box that it follows at once."""
    for before, box, following in zip([None, *row], row, [*row[1:], None], strict=False):
        if box.operation.kind is not Kind.UPDATE:
            yield from _box(box, panel, y, pixels, updates=_follows_at_once(box, following))
        elif not _follows_at_once(before, box):
            x, end = _within(box, panel, pixels)
            width = max(_BAR, end - x)
            yield _rect(end - width, y, width, _ROW - _GAP, INK)


def _follows_at_once(box: Box | None, following: Box | None) -> bool:
    """Whether an update that takes no time comes with the end of a box, and not later, as one that waits does."""
    return box is not None and following is not None and _instant(following) and following.start == box.end


def _instant(box: Box) -> bool:
    return box.operation.kind is Kind.UPDATE and box.start == box.end


def _box(box: Box, panel: Panel, y: float, pixels: float, *, updates: bool) -> Iterator[str]:
    x, end = _within(box, panel, pixels)
    yield f"<g><title>{escape(box.name)}</title>"
    yield _rect(x, y, end - x, _ROW - _GAP, FILL[box.operation.kind][box.operation.minibatch % 2], LINE)
    if updates:
        end -= _BAR
        yield _rect(end, y, _BAR, _ROW - _GAP, INK)
    for text, below, most, weight in (
        (box.label(panel.num_microbatches), 12.5, 12, "bold"),
        (box.read or "", 24, 10, "normal"),
    ):
        if (size := _fitting(text, most, end - x)) > 0:
            yield _text((x + end) / 2, y + below, text, size, weight=weight)
    yield "</g>"


def _within(piece: Box | Message, panel: Panel, pixels: float) -> tuple[float, float]:
    """Where it begins and ends, cut at the borders of the panel."""
    return _LEFT + max(0.0, piece.start) * pixels, _LEFT + min(piece.end, panel.end) * pixels


def _legend(y: float, panels: Sequence[Panel]) -> Iterator[str]:
    x = _LEFT
    kinds = kinds_of(panels)
    words = [(FILL[kind][0], WORDS[kind], width) for kind, width in _LEGEND_WIDTHS.items() if kind in kinds]
    words += [("#ffffff", "idle", 52.0), (INK, "update", 66.0)]
    words += [(color, text, 130.0) for text, color in message_colors(panels).items()]
    for color, text, width in words:
        bar = color == INK
        yield _rect(x + 9 if bar else x, y, _BAR if bar else 12, 12, color, LINE)
        yield _text(x + 17, y + 10, text, 11, anchor="start")
        x += width
    yield _text(_LEFT, y + 28, note(panels), 11, anchor="start")


def _fitting(text: str, size: float, width: float) -> float:
    """The font size at which the text fits, in any of the usual typefaces, at most `size`."""
    return min(size, (width - 3) / (0.62 * max(1, len(text))))


def _rect(x: float, y: float, width: float, height: float, fill: str, stroke: str | None = None) -> str:
    border = f' stroke="{stroke}" stroke-width="0.75"' if stroke else ""
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{fill}"{border}/>'


def _text(x: float, y: float, text: str, size: float, *, anchor: str = "middle", weight: str = "normal") -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size:.3g}" font-weight="{weight}" text-anchor="{anchor}" '
        f'fill="{INK}">{escape(text)}</text>'
    )
