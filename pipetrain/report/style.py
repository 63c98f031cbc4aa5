"""The look that all figures share."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipetrain.libraries.imports import uncollected

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
    "savefig.dpi": 160,
}


@contextmanager
def figure(path: Path, widths: tuple[float, ...], height: float = 3.6) -> Iterator[list["Axes"]]:
    """Panels side by side, `widths` and `height` in inches, written to `path` as a PNG at the end."""
    with uncollected("matplotlib"):
        from matplotlib import rc_context
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

    with rc_context(_SETTINGS):
        sheet = Figure(figsize=(sum(widths), height), layout="constrained")
        FigureCanvasAgg(sheet)
        panels = sheet.subplots(1, len(widths), width_ratios=widths, squeeze=False)
        yield list(panels[0])
        _save(sheet, path)


def _save(sheet: "Figure", path: Path) -> None:
    sheet.savefig(path, metadata={"Software": None})  # the version of matplotlib stays out of the file
