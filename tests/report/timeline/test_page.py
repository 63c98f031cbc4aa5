"""What the page of a timeline holds, against the operation lists."""

from dataclasses import replace

from support.pages import Page, names
from support.panels import panel

from pipetrain.report.timeline.page import page
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
