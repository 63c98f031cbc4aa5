"""The columns that runs are compared by."""

from pathlib import Path

import pytest

from pipetrain.reporting.sweep.columns import cells, column_of
from pipetrain.reporting.sweep.compared_run import ComparedRun
from pipetrain.reporting.sweep.groups import SweepGroup


def group(name, *values):
    runs = [
        ComparedRun(Path("a"), "completed", settings={"seed": seed}, numbers={name: value})
        for seed, value in enumerate(values)
    ]
    return SweepGroup("a", runs)


@pytest.mark.parametrize(
    ("name", "values", "shown"),
    [
        ("top1", [(85.5, 85.9), (9.0,)], ["85.70 ± 0.28", "9.00"]),
        ("loss", [(2.30, 2.31), (2.5,)], ["2.305 ± 0.007", "2.500"]),
        ("loss", [(2.30001, 2.30002)], ["2.300015 ± 0.000007"]),
        ("samples_per_second", [(12345.6,), (3.2,)], ["12346", "3"]),
        ("wall_s", [(0.0,)], ["0"]),
        ("idle_share", [(0.25, 0.35), ()], ["30%", "-"]),
        ("weight_bytes", [(1.5e6,)], ["1.5 MB"]),
    ],
)
def test_decimals_fit_the_values_and_their_spread(name, values, shown):
    assert cells([group(name, *each) for each in values], name) == shown


def test_more_is_better_of_accuracy_and_throughput_alone():
    assert column_of("top1").higher
    assert column_of("best_top1").higher
    assert column_of("samples_per_second").higher
    assert not any(column_of(name).higher for name in ("loss", "best_loss", "perplexity", "wall_s", "memory_bytes"))


def test_less_is_better_of_a_metric_whose_run_says_so():
    groups = [SweepGroup("a", [ComparedRun(Path("a"), "completed", lower_is_better={"rmse"})]), group("f1", 1.0)]
    assert not column_of("rmse", groups).higher
    assert not column_of("best_rmse", groups).higher
    assert column_of("f1", groups).higher
