"""What the page of a timeline holds, against the operation lists."""

from dataclasses import replace

import pytest
from support.pages import Page, names
from support.panels import box, panel

from pipetrain.errors import ConfigError
from pipetrain.report.timeline.panels import Panel
from pipetrain.report.timeline.timeline_page import page, write_timeline
from pipetrain.schedules import Replicas


def test_page_holds_the_lists_and_needs_no_network():
    text = page("A <title> & more", [panel("</script>", D=3, N=2, M=2), panel("b")])
    read = Page(text)
    assert read.content["data"].count("<") == 0
    assert [each["title"] for each in read.data["panels"]] == ["</script>", "b"]
    assert names(read.data["panels"][1]) == [[each.name for each in row] for row in panel().rows]
    assert read.data["panels"][1]["rows"][0][4] == ["F2.0", "v1", 1, 4.0, 5.0]
    assert read.data["panels"][1]["stages"] == [{"name": f"stage {r}", "first": r, "count": 1} for r in range(2)]
    assert "http" not in text
    assert not [name for name, _ in read.attributes if name in ("src", "href")]
    assert "<title>A &lt;title&gt; &amp; more</title>" in text


def test_page_knows_which_rows_are_replicas_of_a_stage():
    (drawn,) = Page(page("a", [replace(panel(D=3), replicas=Replicas((2, 1)))])).data["panels"]
    assert drawn["workers"] == ["stage 0, replica 0", "stage 0, replica 1", "stage 1"]
    assert [(stage["name"], stage["count"]) for stage in drawn["stages"]] == [("stage 0", 2), ("stage 1", 1)]


def test_timeline_is_image_and_page_and_optionally_drawing(tmp_path):
    folder = tmp_path / "new" / "folder"
    assert write_timeline(folder, [panel(title="one & only")]) == ["timeline.png", "timeline.html"]
    assert "<title>one &amp; only</title>" in (folder / "timeline.html").read_text()
    assert write_timeline(folder, [panel(), panel("b")], as_svg=True) == [
        "timeline.png",
        "timeline.svg",
        "timeline.html",
    ]
    assert "<title>Timelines</title>" in (folder / "timeline.html").read_text()
    assert (folder / "timeline.svg").read_text().startswith("<svg")


def test_oversized_timeline_is_refused_before_writing(tmp_path):
    crowded = Panel("a", 1, "", [[box("F0.0", 0, 1)] * 50_001], 0.0, 1.0)
    with pytest.raises(ConfigError, match=r"50,001 operations exceed the limit of 50,000; lower --minibatches"):
        write_timeline(tmp_path / "out", [crowded])
    assert not (tmp_path / "out").exists()
