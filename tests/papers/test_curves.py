"""Curves of experiments, drawn."""

import re
import xml.etree.ElementTree as ElementTree

import pytest
from support.stored_runs import write_run

from papers.curves import Bar, Course, curve_of, draw_bars, draw_courses
from pipetrain.reporting.sweep.comparison import collect, ranked
from pipetrain.reporting.sweep.groups import CoursePoint

TAG = "{http://www.w3.org/2000/svg}"


def points(*means, spread=1.0):
    return [CoursePoint(at, mean, mean - spread, mean + spread) for at, mean in enumerate(means, start=1)]


def drawn(path, **more):
    """The elements of a drawing of three courses, by their tag."""
    courses = [
        Course("gpipe", "90.00 ± 1.00", points(*range(10, 91)), lost=False),
        Course("pipeoptim", "80.00 ± 1.00", points(10, 20, 80), lost=False),
        Course("naive_async", "3 of 3 failed", points(10), lost=True),
    ]
    draw_courses(path, "top1", "epoch", courses, ["A network", "table4, small scale"], **more)
    root = ElementTree.fromstring(path.read_text())
    return {tag: list(root.iter(TAG + tag)) for tag in ("polyline", "polygon", "use", "text", "path")}


def test_each_panel_has_its_course_in_front_of_the_others(tmp_path):
    parts = drawn(tmp_path / "a.svg")
    assert len(parts["polyline"]) == 3
    strokes = [(use.get("href"), use.get("stroke-width")) for use in parts["use"]]
    assert [name for name, width in strokes if width == "1.8"] == ["#c0", "#c1", "#c2"]
    assert len(strokes) == 9
    words = [text.text for text in parts["text"]]
    assert words[:3] == ["A network", "table4, small scale", "top1 by epoch"]
    assert {"gpipe", "90.00 ± 1.00", "3 of 3 failed"} <= set(words)


def test_curves_have_as_many_points_as_can_be_seen_and_stay_inside(tmp_path):
    places = [
        [tuple(map(float, place.split(","))) for place in line.get("points").split()]
        for line in drawn(tmp_path / "a.svg")["polyline"]
    ]
    assert [len(each) for each in places] == [60, 3, 1]
    assert places[0][0][0] == min(x for each in places for x, _ in each)
    assert places[0][-1][0] == max(x for each in places for x, _ in each)
    assert all(0 <= y <= 96 for each in places for _, y in each)


def test_drawing_has_the_same_bytes_each_time(tmp_path):
    drawn(tmp_path / "a.svg")
    drawn(tmp_path / "b.svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_values_of_a_setting_are_in_order(tmp_path):
    courses = [Course(f"stages={count}", "", points(1, 2), lost=False) for count in (107, 4, 16)]
    draw_courses(tmp_path / "a.svg", "top1", "epoch", courses, [])
    assert re.findall(r">stages=(\d+)<", (tmp_path / "a.svg").read_text()) == ["4", "16", "107"]


def test_losses_of_a_diverging_configuration_do_not_press_the_others_together(tmp_path):
    courses = [
        Course("gpipe", "", points(3, 2.5, 2, spread=0), lost=False),
        Course("naive_async", "", points(3, 900, 1e6, spread=0), lost=True),
    ]
    draw_courses(tmp_path / "a.svg", "train_loss", "step", courses, [])
    first = re.search(r'id="c0" points="([^"]*)"', (tmp_path / "a.svg").read_text())[1]
    heights = [float(place.split(",")[1]) for place in first.split()]
    assert max(heights) - min(heights) > 50


@pytest.mark.parametrize("metric", ["top1", None])
def test_what_was_only_timed_has_no_curve(tmp_path, metric):
    write_run(tmp_path / "runs" / "a", "method=gpipe", top1=80.0)
    (group,) = ranked(collect([tmp_path / "runs"], {}), None).groups
    assert (curve_of([group], metric) is not None) is (metric is not None and len(group.course("top1")) > 1)


def test_bars_are_as_long_as_their_rates(tmp_path):
    draw_bars(tmp_path / "a.svg", [("fig5", [Bar("gpipe", 50, "~50"), Bar("pipeoptim", 100, "~100")])])
    root = ElementTree.fromstring((tmp_path / "a.svg").read_text())
    half, whole = (float(each.get("width")) for each in list(root.iter(TAG + "rect"))[1:])
    assert whole == pytest.approx(2 * half, abs=0.2)
    assert "~100" in [text.text for text in root.iter(TAG + "text")]
