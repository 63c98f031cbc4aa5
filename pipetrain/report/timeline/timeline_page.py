"""Timelines as one self-contained HTML file, to look at in a browser."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any

from pipetrain.errors import ConfigError
from pipetrain.report.timeline.drawing import draw
from pipetrain.report.timeline.panels import FILL, INK, LINE, MESSAGES, WORDS, Box, Message, Panel, note
from pipetrain.schedules import Kind
from pipetrain.tracking.files import write_whole

_TEMPLATE = Path(__file__).with_name("timeline_page.html")


def page(title: str, panels: Sequence[Panel]) -> str:
    """The document, with `data_of` the panels as JSON under the id `data`."""
    # "</script>" in a title must not end the element
    data = json.dumps(data_of(panels), separators=(",", ":")).replace("<", "\\u003c")
    text = _TEMPLATE.read_text(encoding="utf-8")
    return text.replace("$TITLE", escape(title)).replace("$DATA", data)


def data_of(panels: Sequence[Panel]) -> dict[str, Any]:
    """Data of the page: operations as [name, read, staleness, start, end], messages as [what, of, start, end]."""
    return {
        "kinds": {kind.value: {"word": WORDS[kind], "fill": FILL.get(kind, (INK, INK))} for kind in Kind},
        "line": LINE,
        "messages": MESSAGES,
        "note": note(panels),
        "panels": [_panel(panel) for panel in panels],
    }


def _panel(panel: Panel) -> dict[str, Any]:
    return {
        **{name: value for name, value in asdict(panel).items() if name not in ("rows", "messages", "replicas")},
        "workers": [panel.workers.name(row) for row in range(len(panel.rows))],
        "stages": [asdict(stage) for stage in panel.stages],
        "rows": [[_operation(box) for box in row] for row in panel.rows],
        "messages": [[_message(message) for message in row] for row in panel.messages],
    }


def _operation(box: Box) -> list[Any]:
    return [str(box.operation), box.read, box.staleness, box.start, box.end]


def _message(message: Message) -> list[Any]:
    return [message.what, str(message.operation), message.start, message.end]


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
