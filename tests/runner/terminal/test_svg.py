"""The dense form of a drawing shows what matplotlib drew."""

import io
import re
from xml.etree import ElementTree

import pytest
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from pipetrain.runner.terminal.style import figure, tooltip
from pipetrain.runner.terminal.svg import dense

NUMBERS = {"M": 2, "L": 2, "Q": 4, "C": 6, "H": 1, "V": 1}


@pytest.fixture(scope="module")
def drawn():
    """What matplotlib writes of lines, markers, boxes, areas, texts and a tooltip."""
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "any"}):
        sheet = Figure()
        panel = sheet.subplots()
        panel.plot([0, 1, 2, 2, 5], [3, 1, 4, 1, -1.5], marker="o", color="#2f6db3")
        panel.plot([0, 1, 2], [1, 1, 1], linestyle="--", label="level < 1 & flat")
        panel.fill_between([0, 1, 2], [0, 1, 2], [1, 2, 2.5], alpha=0.2)
        for x in (0.5, 1.5):
            panel.broken_barh([(x, 0.4), (x + 1, 0.4)], (2, 1), facecolors="#fbdcb4", edgecolors="#5b6470")
        panel.plot([3, 4], [1, 2], gid=tooltip("the tip", 7))
        panel.text(1, 2, "a text")
        for x in range(3):
            panel.text(x, -1, f"text {x}", color="#14181d", fontsize=7)
            box, faint = (Rectangle((x, y), 2, 0.5, alpha=alpha) for y, alpha in ((3, None), (2, 0.3)))
            panel.add_artist(box).set(clip_on=False, gid=tooltip(f"box {x}"))
            panel.add_artist(faint).set(clip_on=False, zorder=5)
        panel.legend()
        file = io.StringIO()
        sheet.savefig(file, format="svg")
    return file.getvalue()


def absolute(path):
    """The points of a path, whatever its commands are relative to, without a way back to the begin of a closed part."""
    points, at, begin = [], (0.0, 0.0), 0
    for command, rest in re.findall(r"([a-zA-Z])([^a-zA-Z]*)", path):
        values = [float(each) for each in re.findall(r"-?(?:\d+\.?\d*|\.\d+)", rest)]
        if command in "zZ":
            if points[-1] == pytest.approx(points[begin], abs=1e-9):
                points.pop()
            at = points[begin]
            points.append("z")
            continue
        assert len(values) == NUMBERS[command.upper()]
        if command == "M":
            begin = len(points)
        if command in "hv":
            values = [values[0], 0.0] if command == "h" else [0.0, values[0]]
        base = at if command.islower() else (0.0, 0.0)
        found = [(x + base[0], y + base[1]) for x, y in zip(values[::2], values[1::2], strict=True)]
        at = found[-1]
        points += found
    return points


def shapes(text):
    """Everything that is drawn, in order: the kind, its style, where it is, and its text."""
    root = ElementTree.fromstring(text[text.index("<svg") :])
    rules = {name: style for style in root.iter() if style.tag.endswith("style")
             for name, style in re.findall(r"\.(\w+)\{([^}]*)\}", style.text)}  # fmt: skip
    named = {f"#{each.get('id')}": each for each in root.iter() if "id" in each.attrib}

    def own(each):
        return rules[each.get("class")] if "class" in each.attrib else each.get("style", "")

    def within(parent, passed_on):
        for each in parent:
            kind, given = each.tag.partition("}")[2], own(each)
            if kind == "use":
                given = given or own(named[each.get("{http://www.w3.org/1999/xlink}href")])
            if kind in ("path", "use", "text"):
                clip = each.get("clip-path")
                style = [given or passed_on, clip and f"clip-path:{clip}"]
                parts = {part.replace(" ", "") for part in ";".join(filter(None, style)).split(";")}
                place = absolute(each.get("d", "")) or [(float(each.get("x", 0)), float(each.get("y", 0)))]
                yield kind, parts - {"", "font-family:'DejaVuSans'"}, place, each.text and each.text.strip()
            yield from within(each, given or passed_on)

    return within(root, "")


def test_dense_drawing_shows_the_same_in_less_than_half_the_bytes(drawn):
    before, after = list(shapes(drawn)), list(shapes(dense(drawn)))
    assert len(before) == len(after) > 40
    for (kind, style, places, text), (same_kind, same_style, same_places, same_text) in zip(before, after, strict=True):
        assert (kind, style, text) == (same_kind, same_style, same_text)
        for place, other in zip(places, same_places, strict=True):
            assert place == other if place == "z" else place == pytest.approx(other, abs=0.0051)
    assert len(dense(drawn)) < len(drawn) / 2


def test_names_that_are_used_are_kept_and_tooltips_stay_with_their_shape(drawn):
    text = dense(drawn)
    used, named = (set(re.findall(pattern, text)) for pattern in (r"#([mp]\w+)\)?\"?", r' id="([^"]*)"'))
    assert named == {name for name in used if f'id="{name}"' in drawn}
    assert len(named) >= 3
    (group,) = [
        each for each in ElementTree.fromstring(text[text.index("<svg") :]).iter() if "data-group" in each.attrib
    ]
    assert (group.get("data-group"), [each.tag.partition("}")[2] for each in group]) == ("7", ["title", "path"])
    assert group[0].text == "the tip"


def test_class_of_a_style_has_the_same_name_in_every_drawing():
    def rules(points):
        file = io.StringIO()
        with figure(file, (3.0,)) as (panel,):
            panel.plot(points, marker="o")
        return dict(re.findall(r"^\.(\w+)\{([^}]*)\}$", file.getvalue(), re.MULTILINE))

    first, second = rules([1, 2, 3]), rules([5, 4])
    shared = first.keys() & second.keys()
    assert shared
    assert all(first[name] == second[name] for name in shared)


def test_neighbors_of_a_style_share_it_through_a_group_unless_they_are_transparent(drawn):
    text = dense(drawn)
    root = ElementTree.fromstring(text[text.index("<svg") :])
    shared = [each for each in root.iter() if each.tag.endswith("}g") and "class" in each.attrib]
    groups = [[each.tag.partition("}")[2] for each in group] for group in shared]
    assert ["text"] * 3 in groups
    assert ["g"] * 3 in groups
    faint = re.findall(r"\.(\w+)\{[^}]*opacity:0.3", text)
    assert [text.count(f'class="{name}"/>') for name in faint] == [3]


def test_shape_that_cannot_be_seen_shows_its_tooltip():
    file = io.StringIO()
    with figure(file, (3.0,)) as (panel,):
        panel.add_artist(Rectangle((0, 0), 1, 1, alpha=0, clip_on=False, gid=tooltip("the tip")))
    (style,) = re.findall(r'<title>the tip</title>\n<path [^>]*style="([^"]*)"/>', file.getvalue())
    assert style == "fill:none;pointer-events:all"
