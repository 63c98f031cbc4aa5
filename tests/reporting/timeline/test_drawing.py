"""What the drawing of a timeline shows, against the operation lists, and the images of the docs."""

import re
import runpy
import xml.etree.ElementTree as ET
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from matplotlib.figure import Figure
from support.pages import Page
from support.panels import box, panel
from support.refusals import assert_refused

from pipetrain.engine.schedules import Replicas
from pipetrain.reporting.timeline import drawing
from pipetrain.reporting.timeline.drawing import write_timeline
from pipetrain.reporting.timeline.from_settings import GivenTimes, phase_timeline, titled_phases
from pipetrain.reporting.timeline.panels import Message, Panel

ROOT = Path(__file__).resolve().parents[3]


def played(settings, minibatches, backward=1.0):
    ((title, phase),) = titled_phases(settings.split())
    return phase_timeline(title, phase, minibatches, GivenTimes(backward=[backward]))[0]


@pytest.fixture
def axes(monkeypatch):
    """The axes that a timeline is drawn on."""
    drawn = Figure(figsize=(12, 4)).subplots()

    @contextmanager
    def figure(*_, **__):
        yield [drawn]

    monkeypatch.setattr(drawing, "figure", figure)
    return drawn


def test_drawing_bears_the_labels_of_the_lists(axes, tmp_path):
    drawing.draw(tmp_path / "a.png", [panel("a", D=3, N=2, M=2), panel("b")])
    texts = [text.get_text() for text in axes.texts]
    expected = []
    for drawn in (panel("a", D=3, N=2, M=2), panel("b")):
        expected.append(drawn.heading)
        operations = [each for row in drawn.rows for each in row if each.read]
        expected += [each.label(drawn.num_microbatches) for each in operations]
        expected += [each.read for each in operations]
    assert texts == expected
    ticks = [label.get_text() for label in axes.get_yticklabels()]
    assert ticks == ["stage 0", "stage 1", "stage 2", "stage 0", "stage 1"]
    assert axes.get_ylim()[0] > axes.get_ylim()[1], "stage 0 is at the top"


def test_drawing_names_a_stage_once_for_all_replicas(axes, tmp_path):
    drawing.draw(tmp_path / "a.png", [replace(panel("a", D=3), replicas=Replicas((1, 2)))])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["stage 0", "0", "1"]
    assert [text.get_text() for text in axes.texts if text.get_text().startswith("stage")] == ["stage 1"]
    (bracket,) = axes.lines
    first, last = (y for y in axes.get_yticks()[1:])
    assert bracket.get_ydata()[0] < first < last < bracket.get_ydata()[1]


def test_legend_names_what_is_shown(axes, tmp_path):
    lane = [box("F0.0", 0, 1), box("R0.0", 2, 3)]
    drawing.draw(tmp_path / "a.png", [Panel("a", 1, "ms", [lane], 0, 3, [[Message("recv", lane[1].operation, 1, 2)]])])
    (legend,) = axes.figure.legends
    words = [text.get_text() for text in legend.get_texts()]
    assert words == ["forward", "recomputation", "update", "idle", "recv of a message"]
    assert axes.get_xlabel() == "time, ms"


def test_drawing_has_the_same_bytes_each_time(tmp_path):
    drawing.draw(tmp_path / "a.svg", [panel()])
    drawing.draw(tmp_path / "b.svg", [panel()])
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_svg_names_each_operation_and_the_version_it_reads(tmp_path):
    drawing.draw(tmp_path / "a.svg", [played("method=pipeoptim partition.stages=2", 3)])
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    ET.fromstring(text)
    assert re.findall("<title>(.*?)</title>", text) == [
        "F0.0@v0", "F1.0@v0+1", "B0.0@v0", "F2.0@v1+1", "B1.0@v1", "B2.0@v2",
        "F0.0@v0", "B0.0@v0", "F1.0@v1", "B1.0@v1", "F2.0@v2", "B2.0@v2",
    ]  # fmt: skip
    assert text.rindex(">v2</text>") < text.index("<title>"), "tooltips lie over the labels"


def test_headings_say_the_idle_share_of_all_stages():
    assert [played(settings, 2).heading for settings in ("method=gpipe", "method=pipeoptim")] == [
        "method=gpipe, schedule=gpipe, D = 2, N = 1: idle share 50%",
        "method=pipeoptim, schedule=1f1b, D = 2, N = 1: no idle share once filled",
    ]
    assert played("method=pipedream partition.replicas=[2,1]", 4).heading.endswith("idle share 33%")
    assert panel("a").heading == "a"


@pytest.mark.slow
@pytest.mark.parametrize("backward", [1.0, 2.0])
@pytest.mark.parametrize(
    ("settings", "share"),
    [
        ("method=sequential partition.stages=4", 3 / 4),
        ("method=gpipe partition.stages=4 train.microbatches=4", 3 / 7),
        ("method=pipedream_flush partition.stages=3 train.microbatches=2", 2 / 4),
        ("method=pipedream partition.stages=4", 0),
        ("method=pipedream partition.stages=4 schedule.depth=7", 0),
        ("method=pipeoptim partition.stages=3 train.microbatches=2", 0),
    ],
)
def test_idle_share_of_the_steady_state_is_its_formula(settings, share, backward):
    assert played(settings, 2, backward).idle_share == pytest.approx(share, abs=1e-9)


def test_drawing_ends_with_the_panel(axes, tmp_path):
    whole = played("method=gpipe partition.stages=2 train.microbatches=2", 3)
    drawing.draw(tmp_path / "a.png", [replace(whole, end=5.0)])
    assert axes.get_xlim() == (0, 5)
    assert max(text.get_position()[0] for text in axes.texts if text.get_ha() == "center") < 5


@pytest.mark.slow
def test_images_of_the_docs_are_what_their_settings_draw(tmp_path):
    script = SimpleNamespace(**runpy.run_path(str(ROOT / "scripts" / "draw_docs_images.py"), run_name="images"))
    images = ROOT / "docs" / "images"
    there = {path.relative_to(images).with_suffix("").as_posix() for path in images.rglob("*.svg")}
    # those are of measured runs, and by a command in the docs or by another script
    assert there - {"staleness", "timeline", "v_versions"} == set(script._DRAWN)
    for name in script._DRAWN:
        script.write(name, tmp_path / "drawn.svg")
        drawn, kept = (path.read_text("utf-8") for path in (tmp_path / "drawn.svg", images / f"{name}.svg"))
        assert _words(drawn) == _words(kept), name


def _words(svg):
    """Texts and tooltips; coordinates differ by a little between versions of matplotlib."""
    return re.findall(r">([^<>\n]+)<", svg)


def test_timeline_is_a_drawing_and_a_page_with_it_that_needs_no_network(tmp_path):
    folder = tmp_path / "new" / "folder"
    whole = replace(panel("one & <only>", D=3), unit="ms", facts=("rate: 3 < 4",))
    assert write_timeline(folder, [whole, panel("b")]) == ["timeline.svg", "timeline.html"]
    drawn, text = ((folder / name).read_text(encoding="utf-8") for name in ("timeline.svg", "timeline.html"))
    assert drawn.startswith("<svg")
    assert drawn in text
    assert "<h2>one &amp; &lt;only&gt;</h2>\n<p>rate: 3 &lt; 4</p>\n<h2>b</h2>" in text
    assert "<title>Timelines</title>" in text
    read = Page(text)
    assert not [name for name, _ in read.attributes if name in ("src", "href")]
    assert "http" not in re.sub(r' xmlns(:xlink)?="[^"]*"', "", text)


def test_tooltips_of_a_page_say_staleness_and_times_and_group_by_minibatch(tmp_path):
    write_timeline(tmp_path, [replace(panel(D=2, M=3), unit="ms")])
    text = (tmp_path / "timeline.svg").read_text(encoding="utf-8")
    found = re.findall(r'data-group="(\d+)"><title>(.*?)</title>', text)
    assert ("2", "F2.0@v1: forward, staleness 1, from 4 ms to 5 ms (1 ms)") in found
    assert {int(group) for group, _ in found} == {0, 1, 2}
    assert all(words[1:].startswith(f"{group}.") for group, words in found)


def test_oversized_timeline_is_refused_before_writing(tmp_path):
    crowded = Panel("a", 1, "", [[box("F0.0", 0, 1)] * 50_001], 0.0, 1.0)
    assert_refused(r"50,001 .* 50,000; .*--minibatches", write_timeline, tmp_path / "out", [crowded])
    assert not (tmp_path / "out").exists()
