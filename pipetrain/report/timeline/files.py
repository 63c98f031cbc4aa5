"""The files that `pipetrain timeline` writes."""

from collections.abc import Sequence
from pathlib import Path

from pipetrain.errors import ConfigError
from pipetrain.report.timeline.drawing import draw
from pipetrain.report.timeline.page import page
from pipetrain.report.timeline.panels import Panel
from pipetrain.tracking.whole_file import write_whole

_MOST_BOXES = 50_000


def write(folder: Path, panels: Sequence[Panel], *, as_svg: bool = False) -> list[str]:
    """Writes timeline.png and timeline.html, with `as_svg` also timeline.svg; returns their names.

    Raises:
        ConfigError: there are too many operations to draw.
    """
    boxes = sum(len(row) for panel in panels for row in panel.rows)
    if boxes > _MOST_BOXES:
        raise ConfigError(f"{boxes:,} operations exceed the limit of {_MOST_BOXES:,}; lower --minibatches")
    folder.mkdir(parents=True, exist_ok=True)
    drawings = ["timeline.png", "timeline.svg"] if as_svg else ["timeline.png"]
    for name in drawings:
        draw(folder / name, panels)
    title = panels[0].title if len(panels) == 1 else "Timelines"
    write_whole(folder / "timeline.html", page(title, panels))
    return [*drawings, "timeline.html"]
