"""The figure of a sweep."""

from contextlib import contextmanager

import pytest
from matplotlib.figure import Figure

from pipetrain.report.sweep import figure
from pipetrain.report.sweep.groups import SweepGroup


@pytest.fixture
def panels(monkeypatch):
    axes = Figure().subplots(1, 2)

    @contextmanager
    def recorded(_path, _widths, height):  # noqa: ARG001
        yield list(axes)

    monkeypatch.setattr(figure, "figure", recorded)
    return axes


@pytest.mark.parametrize(("epochs", "marker"), [((1,), "o"), ((1, 2, 3), "None")])
def test_figure_marks_a_curve_of_a_single_evaluation(panels, tmp_path, epochs, marker):
    curve = [(float(epoch), 10.0 * epoch) for epoch in epochs]
    figure.draw(tmp_path / "sweep.png", "top1", [SweepGroup("gpipe", final={"top1": [10.0]}, curves={"top1": [curve]})])
    (line,) = panels[0].lines
    assert line.get_marker() == marker
    assert list(line.get_xdata()) == list(epochs)
