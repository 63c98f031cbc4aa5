"""Timelines as one self-contained HTML file, to look at in a browser."""

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from pipetrain.errors import ConfigError
from pipetrain.report.timeline.drawing import draw
from pipetrain.report.timeline.panels import FILL, INK, LINE, MESSAGES, WORDS, Panel, note
from pipetrain.schedules import Kind
from pipetrain.tracking.files import write_whole

_TEMPLATE = Path(__file__).with_name("timeline_page.html")


def page(title: str, panels: Sequence[Panel]) -> str:
    """The document, with the panels as JSON under the id `data`."""
    # "</script>" in a title must not end the element
    data = json.dumps(_data(panels), separators=(",", ":")).replace("<", "\\u003c")
    text = _TEMPLATE.read_text(encoding="utf-8")
    return text.replace("$TITLE", escape(title)).replace("$DATA", data)


def _data(panels: Sequence[Panel]) -> dict[str, Any]:
    """Data of the page: operations as [name, read, staleness, start, end], messages as [what, of, start, end]."""
    kept = ("title", "num_microbatches", "unit", "begin", "end", "facts", "idle_share")
    return {
        "kinds": {kind.value: {"word": WORDS[kind], "fill": FILL.get(kind, (INK, INK))} for kind in Kind},
        "line": LINE,
        "messages": MESSAGES,
        "note": note(panels),
        "panels": [
            {
                **{name: getattr(panel, name) for name in kept},
                "workers": [panel.workers.name(row) for row in range(len(panel.rows))],
                "stages": [{"name": name, "first": first, "count": rows} for name, first, rows in panel.stages],
                "rows": [[[str(b.operation), b.read, b.staleness, b.start, b.end] for b in row] for row in panel.rows],
                "messages": [[[m.what, str(m.operation), m.start, m.end] for m in row] for row in panel.messages],
            }
            for panel in panels
        ],
    }


_MOST_BOXES = 50_000


def write_timeline(folder: Path, panels: Sequence[Panel], *, as_svg: bool = False) -> list[str]:
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
