"""The forest plot: what it shows of which claims, and where."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

from papers.claims import Answer, Verdict
from papers.difference import Effect
from papers.forest import draw, kind_of, shown
from papers.paper import Claim
from papers.svg import MARKS
from pipetrain.reporting.seed_statistics import Interval

TAG = "{http://www.w3.org/2000/svg}"


def answer(middle, low, high, *, holds=None, limit=0.0, above=True, tested=True, base=100.0):
    gain = None if middle is None else Interval(middle, low, high, seeds=5)
    effect = Effect("ours", "theirs", "top1", gain, base, limit, above)
    return Answer(("table4",), holds, f"gain {middle}", "small", tested, effect)


def claim(verdict, *answers, number=1):
    return Claim(number, {"name": "x", "claim": "Ours is better"}, Verdict(verdict, [], list(answers)))


def drawn(path, *claims):
    """Tooltip -> the places of the parts of a row: x of its mark, and x of the ends of its interval."""
    assert draw(path, claims, lambda _: "lenet5")
    rows = {}
    for group in ElementTree.fromstring(path.read_text()).iter(TAG + "g"):
        if (title := group.find(TAG + "title")) is not None:
            mark = re.search(r"translate\(([\d.]+)", group.find(TAG + "g").get("transform"))
            bar = group.find(TAG + "line")
            ends = None if bar is None else (float(bar.get("x1")), float(bar.get("x2")))
            rows[title.text] = float(mark[1]), ends
    return rows


def test_row_has_mark_inside_interval_and_tooltip_with_the_evidence(tmp_path):
    rows = drawn(tmp_path / "a.svg", claim("seen", answer(5, 2, 8, holds=True)), claim("undecided", answer(0, -1, 1)))
    middle, (low, high) = rows["seen: gain 5"]
    zero, (left, right) = rows["undecided: gain 0"]
    assert low < middle < high
    assert left < zero < right
    assert zero < low
    assert right - zero == pytest.approx(zero - left, abs=0.2)


@pytest.mark.parametrize(("holds", "above", "right"), [(True, True, True), (False, True, False), (True, False, False)])
def test_what_is_decided_without_a_difference_stands_at_an_edge(tmp_path, holds, above, right):
    sides = answer(5, 2, 8, holds=True), answer(-5, -8, -2, holds=False)
    rows = drawn(tmp_path / "a.svg", claim("seen", *sides, answer(None, 0, 0, holds=holds, above=above)))
    edge = rows[f"{'seen' if holds else 'not seen'}: gain None"][0]
    assert (edge > rows["seen: gain 5"][0]) is right
    assert (edge < rows["not seen: gain -5"][0]) is not right


def test_gray_begins_where_the_claim_does(tmp_path):
    draw(tmp_path / "a.svg", [claim("seen", answer(-1, -2, 0, holds=True, limit=-3.0))], lambda _: "lenet5")
    text = (tmp_path / "a.svg").read_text()
    zone = re.search(r'<rect x="([\d.]+)"[^>]*fill="#e9ecef"', text)
    tick = re.search(r'<text x="([\d.]+)"[^>]*>-3<', text)
    assert float(zone[1]) == pytest.approx(float(tick[1]), abs=0.2)


def test_claims_without_difference_are_left_out(tmp_path):
    nothing = answer(None, 0, 0)
    assert shown(claim("undecided", nothing).verdict) == []
    assert not draw(tmp_path / "a.svg", [claim("holds"), claim("undecided", nothing)], lambda _: "lenet5")
    assert not (tmp_path / "a.svg").exists()


@pytest.mark.parametrize(
    ("verdict", "kind"),
    [
        ("seen at small scale", "seen"),
        ("seen in part at small scale, 1 of 3 experiments", "seen in part"),
        ("not seen at full scale", "not seen"),
        ("not tested here", "not tested"),
        ("undecided", "undecided"),
        ("holds", "seen"),
        ("holds by the paper's definition", "seen"),
        ("holds partly", "seen in part"),
        ("does not hold", "not seen"),
    ],
)
def test_every_verdict_has_its_mark(verdict, kind):
    assert kind_of(verdict) == kind


def test_marks_differ_in_shape_and_not_only_in_color():
    shapes = {name: re.sub(r"#[0-9a-f]{6}", "", mark) for name, mark in MARKS.items()}
    assert len(set(shapes.values())) == len(shapes)
