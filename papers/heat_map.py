"""Heat maps of ratios: a row for each method, panels side by side, readable in gray, with intervals as tooltips."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from papers.svg import LETTER, rectangle, text, titled, write
from pipetrain.runner.terminal.style import GRAY, INK

_WIDTH, _WIDEST, _ROW, _GAP = 640, 48, 19, 12
_SMALL = 10
_DARKEST = (8, 48, 107)
_LIGHT = 0.5
"""Shade from which on letters are white."""


class Cell(NamedTuple):
    """A ratio.

    Attributes:
        ratio: 1 or less is white; infinite is darkest.
        title: the tooltip, with its interval.
        framed: True to emphasize it.
        undecided: True to mark it with a question mark.
    """

    ratio: float
    title: str
    framed: bool = False
    undecided: bool = False

    @property
    def text(self) -> str:
        """It with three digits."""
        if not math.isfinite(self.ratio):
            return "∞"
        return f"{self.ratio:.{2 if self.ratio < 10 else 1}f}{'?' if self.undecided else ''}"


class Panel(NamedTuple):
    """Columns of cells.

    Attributes:
        title: above it.
        heads: of its columns.
        rows: a cell for each column, None where nothing was measured; as many rows as there are names.
        most: the ratio from which on cells are darkest.
    """

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[Cell | None]]
    most: float = 2.5


def draw(path: Path, names: Sequence[str], panels: Sequence[Panel]) -> None:
    """Draws panels with the names of their rows at the left."""
    left = 12 + 11 * LETTER * max(map(len, names))
    columns = sum(len(panel.heads) for panel in panels)
    width = min(_WIDEST, (_WIDTH - left - _GAP * len(panels)) / columns)
    parts, x = list[str](), left
    for panel in panels:
        parts += _panel(panel, x, width)
        x += width * len(panel.heads) + _GAP
    parts += [text(left - 6, 38 + _ROW * (row + 0.7), name, text_anchor="end") for row, name in enumerate(names)]
    write(path, x, 44 + _ROW * len(names), parts)


def _panel(panel: Panel, x: float, width: float) -> Iterator[str]:
    yield text(x, 14, panel.title, font_weight="bold")
    for column, head in enumerate(panel.heads):
        yield text(x + width * (column + 0.5), 32, head, text_anchor="middle", fill=GRAY, font_size=_SMALL)
    for row, cells in enumerate(panel.rows):
        for column, cell in enumerate(cells):
            if cell:
                yield _drawn(cell, panel.most, x + width * column, 38 + _ROW * row, width)


def _drawn(cell: Cell, most: float, x: float, y: float, width: float) -> str:
    shade = min(1.0, max(0.0, math.log(cell.ratio) / math.log(most))) if cell.ratio > 0 else 0.0
    fill = "#" + "".join(f"{round(255 + shade * (part - 255)):02x}" for part in _DARKEST)
    box = rectangle(x, y, width - 1, _ROW - 1, fill, INK if cell.framed else "")
    color = "#fff" if shade > _LIGHT else ""
    words = text(
        x + width / 2,
        y + 13,
        cell.text,
        text_anchor="middle",
        fill=color,
        font_size=_SMALL,
        font_weight="bold" if cell.framed else "",
    )
    return titled(cell.title, box, words)
