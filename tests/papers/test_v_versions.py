"""The table of `1f1b_v` against `1f1b` in docs/methods.md holds what runs measure."""

from pathlib import Path

import pytest

from papers.v_versions import PROCESSES, draw, measured, table

ROOT = Path(__file__).parents[2]
QUICK = (2, 4)


@pytest.mark.parametrize(
    "count", [pytest.param(count, marks=[pytest.mark.slow] * (count not in QUICK)) for count in PROCESSES]
)
def test_documented_rows_are_what_runs_measure(count):
    *_, flat, v = table([measured(schedule, count) for schedule in ("1f1b", "1f1b_v")]).splitlines()
    page = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8").splitlines()
    documented = [line for line in page if line.startswith((f"| {count} | `1f1b` |", f"| {count} | `1f1b_v` |"))]
    assert documented == [flat, v], "run `python scripts/write_v_versions.py`"


def test_process_of_a_v_has_both_of_its_stages():
    held = measured("1f1b_v", 3)
    assert held.staleness == (2, 2, 1, 1, 1, 0)
    assert held.versions == [(3 + 1) / 2, (3 + 2) / 2, (2 + 2) / 2]
    assert held.in_flight == 3


def test_figure_shows_staleness_of_each_layer(tmp_path, monkeypatch):
    drawn = []
    plot = "matplotlib.axes.Axes.plot"
    monkeypatch.setattr(plot, lambda _self, *values, **look: drawn.append((look["label"], list(values[-1]))))
    monkeypatch.setattr("matplotlib.axes.Axes.legend", lambda *_: None)
    draw(tmp_path / "figure.png", [measured(schedule, 2) for schedule in ("1f1b", "1f1b_v")])
    assert drawn[0] == ("1f1b", [1, 1, 0, 0])
    assert drawn[3:5] == [("1f1b_v", [1, 1, 1, 0]), ("1f1b_v", [1.5, 2.0])]
