"""scripts/draw_schedule.py draws the lists that run: what its boxes say, and the idle share in its titles."""

import runpy
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "pipetrain" / "report" / "timeline" / "svg.py"


@pytest.fixture(scope="module")
def draw():
    return SimpleNamespace(**runpy.run_path(str(SCRIPT), run_name="draw_schedule"))


def reads(panel, stage):
    return [box.name for box in panel.rows[stage] if box.read]


def test_boxes_name_the_operation_and_the_version_it_reads(draw):
    panel = draw.panel("method=pipeoptim partition.stages=2", units=8, minibatches=3, backward=1)
    assert reads(panel, 0) == ["F0.0@v0", "F1.0@v0+1", "B0.0@v0", "F2.0@v1+1", "B1.0@v1", "B2.0@v2"]
    assert reads(panel, 1) == ["F0.0@v0", "B0.0@v0", "F1.0@v1", "B1.0@v1", "F2.0@v2", "B2.0@v2"]
    assert [box.name for box in panel.rows[1] if not box.read] == ["U0", "U1", "U2"]


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
def test_svg_shows_the_idle_share_of_the_steady_state(draw, settings, share):
    rules = draw.rules_of(settings).rules
    assert draw.steady_idle_share(rules, draw.durations(rules, 1.0)) == pytest.approx(share, abs=1e-9)
    assert draw.steady_idle_share(rules, draw.durations(rules, 2.0)) == pytest.approx(share, abs=1e-9)


def test_svg_is_cut_where_it_is_told_to_be(draw):
    panel = draw.panel("method=gpipe partition.stages=2 train.microbatches=2", units=5, minibatches=None, backward=1)
    assert max(box.start for row in panel.rows for box in row if box.read) < 5 == panel.end


def test_command_writes_an_svg_that_parses(draw, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["draw_schedule.py", "method=gpipe", "method=pipeoptim", "-o", str(tmp_path / "a")])
    draw.main()
    root = ET.parse(tmp_path / "a").getroot()
    assert root.tag.endswith("svg")
    title = root.find("{http://www.w3.org/2000/svg}title").text
    assert "method=gpipe, schedule=gpipe, D = 2, N = 1: idle share 50%" in title
    assert "method=pipeoptim, schedule=1f1b, D = 2, N = 1: no idle share once filled" in title
