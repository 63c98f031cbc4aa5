"""Student's t, and the intervals of means that are made of it."""

import math
import statistics

import pytest

from pipetrain.report.sweep.interval import Sample, between_seeds, paired, t_quantile, unpaired


@pytest.mark.parametrize(
    ("degrees", "quantile"),
    [(1, 12.7062), (2, 4.3027), (2.5, 3.5747), (7, 2.3646), (14.3, 2.1406), (30, 2.0423), (1000, 1.9623)],
)
def test_quantile_is_that_of_the_tables(degrees, quantile):
    assert t_quantile(degrees) == pytest.approx(quantile, abs=5e-5)


def test_paired_interval_is_that_of_the_mean_difference():
    found = paired([-2.5, -1.5, -1.55], "seeds")
    assert (found.middle, found.half) == pytest.approx((-1.85, 4.3027 * 0.5635 / 3**0.5), abs=1e-3)
    assert (found.low, found.high, found.how) == (
        found.middle - found.half,
        found.middle + found.half,
        "paired, 3 seeds",
    )


def test_unpaired_interval_has_the_degrees_of_freedom_of_welch():
    # Welch (1947): with equal counts and one sample that hardly scatters they are those of the other alone
    found = unpaired(Sample(1.0, 0.001, 3), Sample(0.0, 1.0, 3))
    assert found.half == pytest.approx(4.3027 / 3**0.5, rel=1e-3)
    equal = unpaired(Sample(1.0, 1.0, 3), Sample(0.0, 1.0, 3))
    assert equal.half == pytest.approx(2.7764 * (2 / 3) ** 0.5, rel=1e-3)


def test_numbers_that_do_not_scatter_have_no_doubt():
    found = unpaired(Sample(7.0, 0.0, 1), Sample(9.0, 0.0, 1))
    assert (found.low, found.high, found.how) == (-2.0, -2.0, "")


def test_difference_of_the_same_seeds_is_taken_seed_by_seed():
    ours, theirs = {0: 80.0, 1: 70.0, 2: 60.0}, {0: 79.0, 1: 68.0, 2: 59.0}
    found = between_seeds(ours, theirs)
    assert found.middle == pytest.approx(4 / 3)
    assert found.half == pytest.approx(4.3027 * statistics.stdev([1, 2, 1]) / math.sqrt(3), rel=1e-4)
    assert not found.decided
    assert between_seeds(ours, {seed: value - 5 for seed, value in theirs.items()}).decided


def test_difference_of_other_seeds_has_welchs_interval():
    found = between_seeds({0: 20.0, 1: 22.0, 2: 24.0}, {3: 10.0, 4: 11.0})
    errors = 4 / 3, 0.5 / 2
    degrees = sum(errors) ** 2 / (errors[0] ** 2 / 2 + errors[1] ** 2 / 1)
    assert found.half == pytest.approx(t_quantile(degrees) * math.sqrt(sum(errors)))
    assert found.decided


def test_single_seed_decides_nothing_and_equal_values_do():
    assert between_seeds({0: 99.0}, {0: 1.0, 1: 1.0}).half == math.inf
    assert not between_seeds({0: 99.0}, {0: 1.0, 1: 1.0}).decided
    assert between_seeds({0: 2.0, 1: 2.0}, {2: 1.0, 3: 1.0}).decided
    assert not between_seeds({0: 1.0, 1: 1.0}, {2: 1.0, 3: 1.0}).decided
