"""What the PNG of a timeline shows, against the operation lists."""

from contextlib import contextmanager
from dataclasses import replace

import pytest
from matplotlib.figure import Figure
from support.panels import box, panel

from pipetrain.report.timeline import png
from pipetrain.report.timeline.panels import Message, Panel
from pipetrain.schedules import Replicas


@pytest.fixture
def axes(monkeypatch):
    """The axes that a timeline is drawn on."""
    drawn = Figure(figsize=(12, 4)).subplots()

    @contextmanager
    def figure(*_, **__):
        yield [drawn]

    monkeypatch.setattr(png, "figure", figure)
    return drawn


def test_png_bears_the_labels_of_the_lists(axes, tmp_path):
    png.draw(tmp_path / "a.png", [panel("a", D=3, N=2, M=2), panel("b")])
    texts = [text.get_text() for text in axes.texts]
    expected = []
    for drawn in (panel("a", D=3, N=2, M=2), panel("b")):
        expected.append(drawn.title)
        for row in drawn.rows:
            expected += [word for each in row if each.read for word in (each.label(drawn.num_microbatches), each.read)]
    assert texts == expected
    ticks = [label.get_text() for label in axes.get_yticklabels()]
    assert ticks == ["stage 0", "stage 1", "stage 2", "stage 0", "stage 1"]
    assert axes.get_ylim()[0] > axes.get_ylim()[1], "stage 0 is at the top"


def test_png_names_a_stage_once_beside_a_bracket_around_its_replicas(axes, tmp_path):
    png.draw(tmp_path / "a.png", [replace(panel("a", D=3), replicas=Replicas((1, 2)))])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["stage 0", "0", "1"]
    assert [text.get_text() for text in axes.texts if text.get_text().startswith("stage")] == ["stage 1"]
    (bracket,) = axes.lines
    first, last = (y for y in axes.get_yticks()[1:])
    assert bracket.get_ydata()[0] < first < last < bracket.get_ydata()[1]


def test_legend_names_what_is_shown(axes, tmp_path):
    lane = [box("F0.0", 0, 1), box("R0.0", 2, 3)]
    png.draw(tmp_path / "a.png", [Panel("a", 1, "ms", [lane], 0, 3, [[Message("recv", lane[1].operation, 1, 2)]])])
    (legend,) = axes.figure.legends
    words = [text.get_text() for text in legend.get_texts()]
    assert words == ["forward", "recomputation", "update", "idle", "recv of a message"]
    assert axes.get_xlabel() == "time, ms"


def test_png_has_the_same_bytes_each_time(tmp_path):
    for name in ("a.png", "b.png"):
        png.draw(tmp_path / name, [panel()])
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
