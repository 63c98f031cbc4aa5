"""Timelines as SVG, and the images of the docs, which are drawn so."""

import re
import runpy
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipetrain.report.timeline.given_times import GivenTimes
from pipetrain.report.timeline.of_settings import PhaseTimeline, titled_phases
from pipetrain.report.timeline.panels import INK, Box, Message, Panel
from pipetrain.report.timeline.svg import svg
from pipetrain.schedules import Operation

ROOT = Path(__file__).resolve().parents[3]
SVG = "{http://www.w3.org/2000/svg}"


def panel(settings, minibatches, backward=1.0):
    ((title, phase),) = titled_phases(settings.split())
    return PhaseTimeline(title, phase, minibatches, GivenTimes(backward=[backward])).panel()


def drawn(*panels):
    return ET.fromstring(svg(panels))


def names(root):
    return [group.find(f"{SVG}title").text for group in root.iter(f"{SVG}g")]


def test_svg_names_each_operation_and_the_version_it_reads():
    root = drawn(panel("method=pipeoptim partition.stages=2", 3))
    first, second = names(root)[:6], names(root)[6:]
    assert first == ["F0.0@v0", "F1.0@v0+1", "B0.0@v0", "F2.0@v1+1", "B1.0@v1", "B2.0@v2"]
    assert second == ["F0.0@v0", "B0.0@v0", "F1.0@v1", "B1.0@v1", "F2.0@v2", "B2.0@v2"]


def test_svg_titles_say_the_idle_share_of_all_stages():
    root = drawn(panel("method=gpipe", 2), panel("method=pipeoptim", 2))
    assert root.find(f"{SVG}title").text.split("; ") == [
        "method=gpipe, schedule=gpipe, D = 2, N = 1: idle share 50%",
        "method=pipeoptim, schedule=1f1b, D = 2, N = 1: no idle share once filled",
    ]


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
    assert panel(settings, 2, backward).idle_share == pytest.approx(share, abs=1e-9)


def test_svg_cuts_what_lies_beyond_the_end_of_a_panel():
    whole = panel("method=gpipe partition.stages=2 train.microbatches=2", 3)
    cut = Panel(whole.title, 2, "", whole.rows, 0.0, 5.0)
    boxes = [rect for group in drawn(cut).iter(f"{SVG}g") for rect in group.iter(f"{SVG}rect")]
    assert max(float(rect.get("x")) + float(rect.get("width")) for rect in boxes) == 62 + 5 * 32
    assert len(names(drawn(cut))) < len(names(drawn(whole)))


def test_svg_shows_measured_messages_and_updates_that_take_time():
    def box(name, start, end):
        return Box(Operation.parse(name), None if name[0] == "U" else "v0", 0, start, end)

    row = [box("F0.0", 0, 10), box("B0.0", 15, 25), box("U0", 25, 30)]
    measured = Panel("measured", 1, "ms", [row], 0, 30, [[Message("recv", row[1].operation, 10, 15)]])
    root = drawn(measured)
    assert root.find(f"{SVG}title").text == "measured"
    assert "recv of a message" in [text.text for text in root.iter(f"{SVG}text")]
    # the background, the row, F, B, the update, the message
    widths = {rect.get("fill"): float(rect.get("width")) for rect in list(root.iter(f"{SVG}rect"))[:6]}
    assert widths["#14181d"] == widths["#8a929c"] == 5 * 3.2


@pytest.mark.slow
def test_images_of_the_docs_are_what_their_settings_draw():
    script = SimpleNamespace(**runpy.run_path(str(ROOT / "scripts" / "draw_docs_images.py"), run_name="images"))
    images = ROOT / "docs" / "images"
    assert {path.relative_to(images).with_suffix("").as_posix() for path in images.rglob("*.svg")} == set(script._DRAWN)
    for name in script._DRAWN:
        assert script.drawn(name) == (images / f"{name}.svg").read_text(encoding="utf-8"), name


def test_svg_draws_the_update_of_a_replica_that_waited_for_the_others_when_all_make_it():
    root = drawn(panel("method=pipedream partition.stages=2 partition.replicas=[2,1]", 4))
    bars = [rect.attrib for rect in root.iter(f"{SVG}rect") if rect.get("fill") == INK and rect.get("stroke") is None]
    of_row = [[bar["x"] for bar in bars if bar["y"] == y] for y in sorted({bar["y"] for bar in bars}, key=float)]
    assert of_row[0] == of_row[1]
    assert root.find(f"{SVG}title").text.endswith("idle share 33%")


def test_svg_names_a_stage_once_beside_a_bracket_around_its_replicas():
    root = drawn(panel("method=pipedream partition.stages=3 partition.replicas=[1,3,1]", 4))
    words = [text.text for text in root.findall(f"{SVG}text")]
    assert words[1:7] == ["stage 0", "stage 1", "0", "1", "2", "stage 2"]
    (bracket,) = root.iter(f"{SVG}path")
    rows = sorted({float(r.get("y")) for r in root.findall(f"{SVG}rect") if r.get("stroke") == "#d7dbe0"})
    _, top, height, _ = re.fullmatch(r"M([\d.]+) ([\d.]+)h-3v([\d.]+)(h3)", bracket.get("d")).groups()
    assert float(top) == rows[1]
    assert rows[3] < float(top) + float(height) < rows[4]
