"""The figure of a sweep."""

import math
from contextlib import contextmanager
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from pipetrain.reporting.seed_statistics import Interval
from pipetrain.reporting.sweep import sweep_figure
from pipetrain.reporting.sweep.compared_run import ComparedRun, Point
from pipetrain.reporting.sweep.groups import SweepGroup
from pipetrain.reporting.sweep.slowdown import STEPS, RowSlowdown, Slowdown


@pytest.fixture
def panels(monkeypatch):
    found = []

    @contextmanager
    def recorded(_path, rows, height, foot):  # noqa: ARG001
        lines = [list(Figure().subplots(1, len(widths), squeeze=False)[0]) for widths in rows]
        found.extend(panel for line in lines for panel in line)
        yield lines

    monkeypatch.setattr(sweep_figure, "figure_of_rows", recorded)
    return found


def group(name, epochs=(1, 2), **numbers):
    curves = {"top1": [Point(epoch, 10.0 * epoch) for epoch in epochs]} if epochs else {}
    final = {"top1": 10.0} if epochs else {}
    return SweepGroup(
        name,
        [ComparedRun(Path(name), "completed", settings={"method": name}, final=final, numbers=numbers, curves=curves)],
    )


def test_single_evaluation_has_marker_and_every_curve_a_name(panels, tmp_path):
    sweep_figure.draw(tmp_path / "sweep.png", "top1", [group("gpipe", (1, 2, 3)), group("lwp", (1,))])
    assert [line.get_marker() for line in panels[0].lines] == ["None", "o"]
    assert [list(line.get_xdata()) for line in panels[0].lines] == [[1, 2, 3], [1]]
    assert [text.get_text() for text in panels[0].texts] == ["gpipe", "lwp"]
    assert all(tick == int(tick) for tick in panels[0].get_xticks())


def test_course_of_single_points_is_left_out(panels, tmp_path):
    sweep_figure.draw(tmp_path / "sweep.png", "top1", [group("gpipe", (1,)), group("lwp", (1,))])
    assert (panels[0].get_title(loc="left") or panels[0].get_title()) == "final top1"


def test_measured_values_have_panels_in_table_order(panels, tmp_path):
    numbers = {"samples_per_second": 9.0, "wall_s": 2.0, "idle_share": 0.5, "weight_bytes": 1e6}
    refused = SweepGroup("stale", [ComparedRun(Path("stale"), "refused")])
    sweep_figure.draw(tmp_path / "sweep.png", "top1", [group("gpipe", **numbers), group("lwp", **numbers), refused])
    assert [panel.get_title(loc="left") or panel.get_title() for panel in panels[1:]] == [
        "final top1", "samples/s", "wall time, s", "idle", "weights, activations",
    ]  # fmt: skip
    assert [label.get_text() for label in panels[1].get_yticklabels()] == ["gpipe", "lwp"]
    assert panels[1].get_ylim() == (1.6, -0.6)


def test_slowdowns_are_bars_with_intervals_and_infinite_ones_pale(panels, tmp_path):
    groups = [group(name, (), samples_per_second=3.0) for name in ("gpipe", "lwp", "stale")]
    ratios = [
        Interval(1.0, 1.0, 1.0),
        Interval(2.0, 1.5, 2.5, seeds=3),
        Interval(math.inf, 1.2, math.inf, infinite=(1, 0)),
    ]
    rows = [RowSlowdown({}, {STEPS: ratio}) for ratio in ratios]
    found = Slowdown("gpipe", "train_loss", 2.5, 0.7, width=5.0, rows=rows)
    sweep_figure.draw(tmp_path / "sweep.png", None, groups, [found])
    assert panels[0].get_title() == "slowdown to training loss 2.5"
    assert [(bar.get_width(), bar.get_alpha()) for bar in panels[0].patches] == [(1.0, 1.0), (2.0, 1.0), (2.8, 0.25)]
    assert [list(line.get_xdata()) for line in panels[0].lines] == [[1.0, 1.0], [1.5, 2.5], [1.0, 1.0]]
    assert [text.get_text() for text in panels[0].texts] == ["infinite"]


def test_runs_without_evaluation_are_drawn_without_curves(panels, tmp_path):
    sweep_figure.draw(tmp_path / "sweep.png", None, [group("gpipe", (), samples_per_second=3.0)])
    assert [label.get_text() for label in panels[0].get_yticklabels()] == ["gpipe"]


@pytest.mark.parametrize(("executor", "shown"), [("distributed", ["peak memory"]), ("simulated", [])])
def test_peak_memory_is_drawn_of_processes_that_are_stages_alone(panels, tmp_path, executor, shown):
    run = ComparedRun(Path("a"), "completed", settings={"executor.name": executor}, numbers={"memory_bytes": 1e9})
    sweep_figure.draw(tmp_path / "sweep.png", None, [SweepGroup("a", [run])])
    assert [panel.get_title() for panel in panels] == [*shown, "weights, activations"]


def test_course_that_diverged_ends_in_a_cross(panels, tmp_path):
    run = ComparedRun(
        Path("a"),
        "diverged",
        settings={"method": "stale"},
        final={"top1": 9.0},
        curves={"top1": [Point(1, 10.0), Point(2, 9.0)]},
    )
    sweep_figure.draw(tmp_path / "sweep.png", "top1", [group("gpipe", (1, 2, 3)), SweepGroup("stale", [run])])
    crosses = [line for line in panels[0].lines if line.get_marker() == "X"]
    assert [(line.get_xdata()[0], line.get_ydata()[0]) for line in crosses] == [(2, 9.0)]


def test_losses_of_a_run_that_diverged_leave_the_others_in_sight(panels, tmp_path):
    def trained(method, status, *losses):
        curve = [Point(1, loss, step) for step, loss in enumerate(losses, 1)]
        run = ComparedRun(
            Path(method), status, settings={"method": method}, numbers={"wall_s": 1.0}, curves={"train_loss": curve}
        )
        return SweepGroup(method, [run])

    sweep_figure.draw(
        tmp_path / "sweep.png",
        None,
        [trained("gpipe", "completed", 2.5, 2.0, 1.5), trained("stale", "diverged", 2.4, 60.0, 1e27)],
    )
    low, high = panels[0].get_ylim()
    assert 1.0 < low < 1.5
    assert high == pytest.approx(3.0)
    assert (panels[0].get_title(loc="left") or panels[0].get_title()).endswith(", cut at 3")
    (cross,) = [line for line in panels[0].lines if line.get_marker() == "X"]
    assert list(cross.get_ydata()) == [high]


def test_accuracy_of_a_run_that_was_stopped_is_not_cut(panels, tmp_path):
    points = [Point(epoch, 10.0 * epoch) for epoch in range(1, 9)]
    run = ComparedRun(
        Path("a"), "interrupted", settings={"method": "gpipe"}, numbers={"wall_s": 1.0}, curves={"top1": points}
    )
    sweep_figure.draw(tmp_path / "sweep.png", "top1", [SweepGroup("gpipe", [run])])
    assert panels[0].get_ylim()[1] > 80


@pytest.mark.parametrize(
    ("numbers", "time"), [({}, "wall time"), ({"predicted_samples_per_second": 5.0}, "predicted time")]
)
def test_metric_is_drawn_by_epoch_step_and_time_with_seed_bands(panels, tmp_path, numbers, time):
    runs = [
        ComparedRun(
            Path("a"), "completed", settings={"method": "gpipe", "seed": seed}, final={"top1": 1.0}, numbers=numbers,
            curves={"top1": [Point(1, 10.0 + seed, 5, 2.0), Point(2, 20.0 + seed, 12, 4.0)],
                    "train_loss": [Point(1, 3.0, 1, 0.5), Point(1, 2.0, 2, 1.0)]},
        )
        for seed in (0, 2)
    ]  # fmt: skip
    sweep_figure.draw(tmp_path / "sweep.png", "top1", [SweepGroup("gpipe", runs)])
    assert [panel.get_title() for panel in panels[:4]] == [
        "top1 by epoch, mean and range of 2 seeds", "top1 by step, mean and range of 2 seeds",
        f"top1 by {time}, mean and range of 2 seeds", "training loss by step, mean and range of 2 seeds",
    ]  # fmt: skip
    (line,), (band,) = panels[2].lines, panels[2].collections
    assert [list(line.get_xdata()), list(line.get_ydata())] == [[2.0, 4.0], [11.0, 21.0]]
    assert {tuple(corner) for corner in band.get_paths()[0].vertices} >= {(2, 10), (2, 12), (4, 20), (4, 22)}
    assert panels[2].get_xlim()[0] == 0
