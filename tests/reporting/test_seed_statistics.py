"""Intervals of differences and ratios over seeds, verdicts, and the choice of a setting on seeds of its own."""

import itertools
import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipetrain.reporting.seed_statistics import Interval, Sample, difference, ratio, t_quantile, verdict, welch

INF = math.inf


def seeds(*values, first=0):
    return dict(enumerate(values, first))


@pytest.mark.parametrize(
    ("degrees", "quantile"),
    [(1, 12.7062), (2, 4.3027), (2.5, 3.5747), (7, 2.3646), (14.3, 2.1406), (30, 2.0423), (1000, 1.9623)],
)
def test_quantile_is_that_of_the_tables(degrees, quantile):
    assert t_quantile(degrees) == pytest.approx(quantile, abs=5e-5)


def test_difference_of_the_same_seeds_is_taken_seed_by_seed():
    ours, theirs = seeds(80.0, 70.0, 60.0), seeds(79.0, 68.0, 59.0)
    found, half = difference(ours, theirs), 4.30265 * statistics.stdev([1, 2, 1]) / math.sqrt(3)
    assert (found.low, found.middle, found.high) == pytest.approx((4 / 3 - half, 4 / 3, 4 / 3 + half), rel=1e-4)
    assert (found.how, found.seeds, found.half) == ("paired, 3 seeds", 3, pytest.approx(half, rel=1e-4))
    assert found.spread == pytest.approx(statistics.stdev([1, 2, 1]))
    assert not found.decided
    assert difference(ours, dict(reversed(theirs.items()))) == found
    assert difference(ours, {seed: value - 5 for seed, value in theirs.items()}).decided


def test_difference_of_other_seeds_has_welchs_interval():
    found = difference(seeds(20.0, 22.0, 24.0), seeds(10.0, 11.0, first=3))
    errors = 4 / 3, 0.5 / 2
    degrees = sum(errors) ** 2 / (errors[0] ** 2 / 2 + errors[1] ** 2 / 1)
    assert found.half == pytest.approx(t_quantile(degrees) * math.sqrt(sum(errors)))
    assert found.how == "unpaired, 3 and 2 runs"
    assert found.decided


def test_welchs_degrees_are_those_of_the_sample_that_scatters():
    # Welch (1947): with equal counts and one sample that hardly scatters they are those of the other alone
    found = welch(Sample(1.0, 0.001, 3), Sample(0.0, 1.0, 3))
    assert found.half == pytest.approx(4.3027 / 3**0.5, rel=1e-3)
    equal = welch(Sample(1.0, 1.0, 3), Sample(0.0, 1.0, 3))
    assert equal.half == pytest.approx(2.7764 * (2 / 3) ** 0.5, rel=1e-3)


def test_numbers_that_do_not_scatter_have_no_doubt():
    found = welch(Sample(7.0, 0.0, 1), Sample(9.0, 0.0, 1))
    assert (found.low, found.high, found.how) == (-2.0, -2.0, "")
    assert difference(seeds(2.0, 2.0), seeds(1.0, 1.0, first=2)).decided
    assert not difference(seeds(1.0, 1.0), seeds(1.0, 1.0, first=2)).decided


def test_single_seed_decides_nothing():
    found = difference(seeds(99.0), seeds(1.0, 1.0))
    assert (found.middle, found.low, found.high, found.decided) == (98.0, -INF, INF, False)


def test_ratio_of_three_seeds_has_students_interval_of_logarithms():
    found = ratio(seeds(2.0, 3.0, 4.0), seeds(1.0, 1.0, 1.0))
    half = 4.3027 * statistics.stdev(map(math.log, (2, 3, 4))) / math.sqrt(3)
    assert found.middle == pytest.approx(statistics.geometric_mean((2, 3, 4)))
    assert math.log(found.high / found.middle) == pytest.approx(half, rel=1e-4)
    assert math.log(found.middle / found.low) == pytest.approx(half, rel=1e-4)


def test_bootstrap_widens_the_interval_of_many_skewed_values():
    # of 20 values two are 10: of 20 drawn, 5 or more are with probability 0.043, 6 or more with 0.011
    found = difference(seeds(*[0.0] * 18, 10.0, 10.0), dict.fromkeys(range(20), 0.0))
    half = t_quantile(19) * found.spread / math.sqrt(20)
    assert found.middle + half < found.high == 10 * 5 / 20
    assert found.low == pytest.approx(found.middle - half)


@given(st.lists(st.sampled_from([0.0, 1.0]) | st.floats(0.01, 100.0), min_size=2, max_size=4))
def test_bootstrap_of_few_values_would_not_widen_the_interval(values):
    found = difference(seeds(*values), dict.fromkeys(range(len(values)), 0.0))
    means = [statistics.fmean(picked) for picked in itertools.product(values, repeat=len(values))]
    assert sum(mean < found.low - 1e-9 for mean in means) <= 0.025 * len(means)
    assert sum(mean > found.high + 1e-9 for mean in means) <= 0.025 * len(means)


def test_random_resamples_are_the_same_in_every_call():
    dice = random.Random(1)
    ours, theirs = (seeds(*(dice.expovariate(1) for _ in range(12)), first=first) for first in (0, 20))
    assert difference(ours, theirs) == difference(ours, theirs)


def test_interval_of_many_seeds_holds_the_truth_in_about_95_percent():
    dice, held = random.Random(0), 0
    for _ in range(200):
        found = difference(seeds(*(dice.gauss(1) for _ in range(3))), seeds(*(dice.gauss() for _ in range(3)), first=5))
        held += found.low <= 1.0 <= found.high
    assert 0.93 <= held / 200 <= 1.0


@pytest.mark.parametrize(
    ("ours", "theirs", "middle", "low", "high"),
    [
        ((INF, INF), (1.0, 2.0), INF, INF, INF),
        ((1.0, 2.0), (INF, INF), -INF, -INF, -INF),
        ((INF,), (1.0,), INF, -INF, INF),
        ((INF, INF), (1.0, INF), None, -INF, INF),
        ((2.0, INF), (INF, 1.0), None, -INF, INF),
    ],
)
def test_runs_that_diverged_are_infinitely_worse(ours, theirs, middle, low, high):
    found = difference(seeds(*ours), seeds(*theirs))
    assert (found.low, found.high) == (low, high)
    assert math.isnan(found.middle) if middle is None else found.middle == middle
    assert found.infinite == (ours.count(INF), theirs.count(INF))


def test_one_diverged_run_counts_at_least_as_the_worst_of_the_rest():
    ours, theirs = (4.0, INF, 5.0), (1.0, 1.0, 1.0)
    found = difference(seeds(*ours), seeds(*theirs))
    clipped = difference(seeds(4.0, 5.0, 5.0), seeds(*theirs))
    assert (found.middle, found.low, found.high) == (INF, clipped.low, INF)
    assert verdict(found, high=1.5).holds is False
    assert verdict(found, low=1.0).holds is True
    assert verdict(found, high=4.0) == (None, None)


@given(st.lists(st.floats(0.1, 10.0), min_size=2, max_size=5), st.floats(0.5, 4.0))
def test_ratio_to_a_multiple_is_that_factor_in_every_seed(values, factor):
    ours = seeds(*(factor * value for value in values))
    found = ratio(ours, seeds(*values))
    assert (found.middle, found.low, found.high) == pytest.approx((factor, factor, factor))
    assert ratio(seeds(*values), ours).middle == pytest.approx(1 / factor)


@given(st.lists(st.floats(0.1, 10.0), min_size=2, max_size=4), st.lists(st.floats(0.1, 10.0), min_size=2, max_size=4))
def test_interval_contains_the_difference_of_means(ours, theirs):
    found = difference(seeds(*ours), seeds(*theirs))
    assert found.low <= found.middle + 1e-9
    assert found.middle <= found.high + 1e-9
    assert found.middle == pytest.approx(statistics.fmean(ours) - statistics.fmean(theirs))


@pytest.mark.parametrize(
    ("low", "high", "holds"),
    [(1.0, 1.04, True), (1.0, 1.05, True), (1.06, 1.2, False), (1.04, 1.06, None), (0.5, INF, None)],
)
def test_verdict_needs_the_whole_interval_on_one_side(low, high, holds):
    assert verdict(Interval(1.0, low, high), high=1.05).holds is holds


def test_interval_around_the_whole_margin_is_undecided():
    assert verdict(Interval(0.0, -2.0, 2.0), -1.0, 1.0).holds is None
    assert verdict(Interval(0.0, -0.5, 0.5), -1.0, 1.0).holds is True


def test_undecided_verdict_tells_how_many_seeds_would_decide():
    # paired differences 1, 3, 2: middle 2, spread 1; the edge at 1.1 is 0.9 away, and t(n - 1) / sqrt(n) falls below
    # 0.9 at n = 8: 2.3646 / 2.8284 = 0.836 (at 7: 2.4469 / 2.6458 = 0.925)
    found = difference(seeds(1.0, 3.0, 2.0), seeds(0.0, 0.0, 0.0))
    assert verdict(found, high=1.1) == (None, 8)
    assert str(verdict(found, high=1.1)) == "undecided, about 8 seeds would decide at even odds"
    assert verdict(found, high=2.0) == (None, None)
    assert verdict(difference(seeds(1.0), seeds(0.0)), high=1.1) == (None, None)
    assert [str(verdict(found, high=high)) for high in (9.0, -9.0)] == ["holds", "fails"]


def test_seeds_that_decide_a_ratio_are_counted_on_logarithms():
    found = ratio(seeds(math.e, math.e**3, math.e**2), seeds(1.0, 1.0, 1.0))
    assert verdict(found, high=math.exp(1.1)) == (None, 8)


def test_hopeless_number_of_seeds_is_still_estimated():
    found = difference(seeds(1.0, 3.0, 2.0), seeds(0.0, 0.0, 0.0))
    assert verdict(found, high=1.999).seeds == pytest.approx((1.96 / 1e-3) ** 2, rel=1e-6)
