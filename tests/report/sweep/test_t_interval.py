"""Confidence intervals of differences of means."""

import math
import statistics

import pytest

from pipetrain.report.sweep.t_interval import mean_difference, t_quantile


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 12.7062), (2, 4.30265), (3, 3.18245), (10, 2.22814), (30, 2.04227), (1e6, 1.95997)]
)
def test_quantiles_are_those_of_printed_tables(freedom, quantile):
    assert t_quantile(freedom) == pytest.approx(quantile, rel=1e-5)


def test_quantile_between_whole_degrees_of_freedom_lies_between_theirs():
    assert t_quantile(2) > t_quantile(2.5) > t_quantile(3)
    assert t_quantile(2.5) == pytest.approx(3.5747, abs=1e-4)
    assert t_quantile(5, 0.99) == pytest.approx(4.0321, abs=1e-4)


def test_difference_of_the_same_seeds_is_taken_seed_by_seed():
    ours, theirs = {0: 80.0, 1: 70.0, 2: 60.0}, {0: 79.0, 1: 68.0, 2: 59.0}
    found = mean_difference(ours, theirs)
    assert found.mean == pytest.approx(4 / 3)
    assert found.half_width == pytest.approx(4.30265 * statistics.stdev([1, 2, 1]) / math.sqrt(3), rel=1e-5)
    assert not found.decided
    assert mean_difference(ours, {seed: value - 5 for seed, value in theirs.items()}).decided


def test_difference_of_other_seeds_has_welchs_interval():
    found = mean_difference({0: 20.0, 1: 22.0, 2: 24.0}, {3: 10.0, 4: 11.0})
    errors = 4 / 3, 0.5 / 2
    freedom = sum(errors) ** 2 / (errors[0] ** 2 / 2 + errors[1] ** 2 / 1)
    assert found.half_width == pytest.approx(t_quantile(freedom) * math.sqrt(sum(errors)))
    assert found.decided


def test_single_seed_decides_nothing_and_equal_values_do():
    assert mean_difference({0: 99.0}, {0: 1.0, 1: 1.0}).half_width == math.inf
    assert not mean_difference({0: 99.0}, {0: 1.0, 1: 1.0}).decided
    assert mean_difference({0: 2.0, 1: 2.0}, {2: 1.0, 3: 1.0}).decided
    assert not mean_difference({0: 1.0, 1: 1.0}, {2: 1.0, 3: 1.0}).decided
