"""What separates each row from the first."""

from pathlib import Path

import pytest

from pipetrain.report.sweep.compared_run import ComparedRun
from pipetrain.report.sweep.from_best import difference_cells
from pipetrain.report.sweep.groups import SweepGroup


def group(*values, status="completed", name="top1"):
    runs = [
        ComparedRun(Path("a"), status, settings={"seed": seed}, numbers={name: value})
        for seed, value in enumerate(values)
    ]
    return SweepGroup("a", runs)


def test_difference_that_the_seeds_tell_has_its_interval_and_the_others_are_undecided():
    groups = [group(90.0, 91.0), group(89.0, 91.5), group(80.0, 81.1), group(70.0), group(1.0, 2.0, status="failed")]
    assert difference_cells(groups, "top1") == [
        "-", "-0.25 ± 9.53 undecided", "-9.95 ± 0.64", "-20.50 undecided", "-",
    ]  # fmt: skip


def test_nothing_is_compared_with_runs_that_did_not_complete_or_with_a_single_row():
    assert difference_cells([group(9.0, 8.0, status="failed"), group(7.0, 6.0)], "top1") == []
    assert difference_cells([group(9.0, 8.0)], "top1") == []
    assert difference_cells([group(9.0, 8.0)] * 2, None) == []


@pytest.mark.parametrize(
    ("name", "values", "shown"),
    [("memory_bytes", (1e6, 2e6), "+1 MB undecided"), ("idle_share", (0.2, 0.1), "-10% undecided")],
)
def test_differences_are_in_the_unit_of_their_column(name, values, shown):
    assert difference_cells([group(value, name=name) for value in values], name)[1] == shown
