"""The look of all figures, and of the pages of sweeps and comparisons."""

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipetrain.data.libraries.imports import gc_paused
from pipetrain.runner.terminal.svg import dense
from pipetrain.runner.tracking.files import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, RED, GRAY, INK = "#2f6db3", "#e08214", "#1b8a5a", "#c0392b", "#8a929c", "#14181d"
LADDER = ("#9ecae1", "#4292c6", "#08519c", RED)
"""Colors of lines in a sequence, the last of which stands out."""

_SETTINGS: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.edgecolor": "#5b6470",
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e3e6ea",
    "grid.linewidth": 0.7,
    "lines.linewidth": 1.8,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "savefig.dpi": 120,
    "svg.fonttype": "none",
    "svg.hashsalt": "pipetrain",
}
_PAGE = Path(__file__).with_name("page.css")
_COLORS = 64
"""Number of colors in a PNG."""
_LINE = 0.16
"""Height of a line of text, in inches."""


@contextmanager
def figure(file: Path | io.StringIO, widths: tuple[float, ...], height: float = 3.6) -> Iterator[list["Axes"]]:
    """Panels side by side, `widths` and `height` in inches, written to `file` at the end: see `_sheet`."""
    with _sheet(file, sum(widths), height) as sheet:
        panels = sheet.subplots(1, len(widths), width_ratios=widths, squeeze=False)
        yield list(panels[0])


@contextmanager
def figure_of_rows(
    path: Path, rows: Sequence[Sequence[float]], height: float, foot: Sequence[str] = ()
) -> Iterator[list[list["Axes"]]]:
    """Rows of panels below each other, written to `path` at the end: see `_sheet`.

    Args:
        path: of the file.
        rows: the widths of their panels in inches; all rows become as wide as the widest.
        height: of a row, in inches.
        foot: lines of text below them.
    """
    below = _LINE * len(foot)
    with _sheet(path, max(map(sum, rows)), height * len(rows) + below) as sheet:
        heights = [height] * len(rows) + [below] * bool(foot)
        parts = sheet.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
        if foot:
            parts[-1].text(0.01, 1, "\n".join(foot), va="top", fontsize=8)
        every = zip(parts, rows, strict=False)
        yield [list(part.subplots(1, len(row), width_ratios=row, squeeze=False)[0]) for part, row in every]


@contextmanager
def _sheet(file: Path | io.StringIO, width: float, height: float) -> Iterator["Figure"]:
    """A figure, written at the end: as PNG or SVG by the name of the file, as SVG to an open one."""
    with gc_paused("matplotlib"):
        from matplotlib import rc_context
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

    with rc_context(_SETTINGS), warnings.catch_warnings():
        sheet = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(sheet)
        yield sheet
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # a box is drawn in place of a letter
        if isinstance(file, Path) and file.suffix != ".svg":
            _save_png(sheet, file)
            return
        drawn = io.StringIO()
        sheet.savefig(drawn, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
        text = dense(drawn.getvalue())
        element = text[text.index("<svg") :]  # which an HTML page may contain, too
        if isinstance(file, Path):
            write_whole(file, element)
        else:
            file.write(element)


def _save_png(sheet: "Figure", file: Path) -> None:
    """Saves a figure with a palette, which takes a third of the bytes that true colors take."""
    from PIL import Image

    drawn = io.BytesIO()
    sheet.savefig(drawn, format="png")
    image = Image.open(drawn).convert("RGB").quantize(_COLORS, dither=Image.Dither.NONE)
    reduced = io.BytesIO()
    image.save(reduced, "PNG", optimize=True)
    write_whole(file, reduced.getvalue())


def page_style() -> str:
    """Style sheet shared by the pages of sweeps and comparisons."""
    return _PAGE.read_text(encoding="utf-8").rstrip()


def tooltip(text: str, group: int | None = None) -> str:
    """The `gid` of an artist with a tooltip in SVG; `group` marks it as an artist of this group."""
    return f"tooltip{'' if group is None else group}:{text}"
