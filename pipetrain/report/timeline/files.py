"""The files that `pipetrain timeline` writes."""

from collections.abc import Sequence
from pathlib import Path

from pipetrain.errors import ConfigError
from pipetrain.report.timeline.page import page
from pipetrain.report.timeline.panels import Panel
from pipetrain.report.timeline.png import draw

_MOST_BOXES = 50_000


def write(folder: Path, panels: Sequence[Panel]) -> list[str]:
    """Writes timeline.png and timeline.html; returns their names.

    Raises:
        ConfigError: there are too many operations to draw.
    """
    boxes = sum(len(row) for panel in panels for row in panel.rows)
    if boxes > _MOST_BOXES:
        raise ConfigError(f"{boxes:,} operations exceed the limit of {_MOST_BOXES:,}; lower --minibatches")
    folder.mkdir(parents=True, exist_ok=True)
    draw(folder / "timeline.png", panels)
    title = panels[0].title if len(panels) == 1 else "Timelines"
    (folder / "timeline.html").write_text(page(title, panels), encoding="utf-8")
    return ["timeline.png", "timeline.html"]
