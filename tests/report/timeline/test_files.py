"""The files of a timeline."""

import pytest
from support.panels import box, panel

from pipetrain.errors import ConfigError
from pipetrain.report.timeline.files import write
from pipetrain.report.timeline.panels import Panel


def test_timeline_is_an_image_and_a_page_and_on_request_a_drawing(tmp_path):
    folder = tmp_path / "new" / "folder"
    assert write(folder, [panel(title="one & only")]) == ["timeline.png", "timeline.html"]
    assert "<title>one &amp; only</title>" in (folder / "timeline.html").read_text()
    assert write(folder, [panel(), panel("b")], as_svg=True) == ["timeline.png", "timeline.svg", "timeline.html"]
    assert "<title>Timelines</title>" in (folder / "timeline.html").read_text()
    assert (folder / "timeline.svg").read_text().startswith("<svg")


def test_timeline_of_too_many_operations_is_refused_before_anything_is_written(tmp_path):
    crowded = Panel("a", 1, "", [[box("F0.0", 0, 1)] * 50_001], 0.0, 1.0)
    with pytest.raises(ConfigError, match=r"50,001 operations exceed the limit of 50,000; lower --minibatches"):
        write(tmp_path / "out", [crowded])
    assert not (tmp_path / "out").exists()
