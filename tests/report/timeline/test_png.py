"""What the PNG and the page of a timeline show, against the operation lists."""

from contextlib import contextmanager

import pytest
from matplotlib.figure import Figure
from support.pages import Page, names

from pipetrain.executors.phase import PipelineRules
from pipetrain.methods.naive_async import NaiveAsync
from pipetrain.program.playback import play
from pipetrain.program.text_grid import unit_duration
from pipetrain.report.timeline import png
from pipetrain.report.timeline.page import page
from pipetrain.report.timeline.panels import Box, Message, Panel, boxes, note
from pipetrain.schedules import Operation
from pipetrain.schedules.one_f_one_b import OneFOneB


def panel(title="a", D=2, N=1, M=3, start=0):
    rules = PipelineRules(OneFOneB(), NaiveAsync(), D, N)
    played = play(rules.lists(M), unit_duration)
    rows = [list(boxes(row, rules.planned(r, M, start), start)) for r, row in enumerate(played)]
    return Panel(title, N, "", rows, 0.0, max(row[-1].end for row in rows))


def box(name, start, end):
    return Box(Operation.parse(name), "v0", 0, start, end)


def test_boxes_show_the_operation_its_weight_read_and_its_staleness():
    rows = panel().rows
    assert [each.name for each in rows[0]] == [
        "F0.0@v0", "F1.0@v0", "B0.0@v0", "U0", "F2.0@v1", "B1.0@v1", "U1", "B2.0@v2", "U2",
    ]  # fmt: skip
    assert [each.staleness for each in rows[0]] == [0, 1, 0, None, 1, 0, None, 0, None]


def test_minibatches_and_versions_count_from_the_start_of_the_run():
    assert [each.name for each in panel(start=10).rows[1]][:4] == ["F10.0@v10", "B10.0@v10", "U10", "F11.0@v11"]
    assert [each.staleness for each in panel(start=10).rows[0]][:2] == [0, 1]


def test_label_has_the_microbatch_where_there_are_several():
    assert [box(name, 0, 1).label(4) for name in ("F3.2", "B3")] == ["3.2", "3"]
    assert box("F3.0", 0, 1).label(1) == "3"


def test_part_of_a_panel_keeps_what_is_visible_and_an_update_at_its_end():
    whole = Panel("a", 1, "", [[box("F0.0", 0, 1), box("F1.0", 1, 3), box("U0", 3, 3), box("F2.0", 3, 4)]], 0, 4)
    part = whole.between(2, 3)
    assert [(each.name, each.start, each.end) for each in part.rows[0]] == [("F1.0@v0", -1, 1), ("U0@v0", 1, 1)]
    assert (part.begin, part.end) == (0, 1)


def test_note_explains_only_the_weight_reads_that_are_shown():
    def drawn(read):
        return [Panel("a", 1, "", [[Box(Operation.parse("F0.0"), read, 0, 0, 1)]], 0, 1)]

    assert "+s" in note(drawn("v0+1"))
    assert "δ" in note(drawn("v3-5δ"))
    assert "+s" not in note(drawn("v3-5δ"))
    assert "led s updates ahead" in note(drawn("v3+5δ"))
    assert "+s:" not in note(drawn("v3+5δ"))
    assert "-sδ" not in note(drawn("v3+5δ"))
    assert note(drawn("v0")).endswith("weight version read")


def test_page_holds_the_lists_and_needs_no_network():
    text = page("A <title> & more", [panel("</script>", D=3, N=2, M=2), panel("b")])
    read = Page(text)
    assert read.content["data"].count("<") == 0
    assert [each["title"] for each in read.data["panels"]] == ["</script>", "b"]
    assert names(read.data["panels"][1]) == [[each.name for each in row] for row in panel().rows]
    assert read.data["panels"][1]["rows"][0][4] == ["F2.0", "v1", 1, 4.0, 5.0]
    assert "http" not in text
    assert not [name for name, _ in read.attributes if name in ("src", "href")]
    assert "<title>A &lt;title&gt; &amp; more</title>" in text


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
