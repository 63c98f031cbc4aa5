"""Steps to a loss, from curves whose values are computed by hand, and how they scale."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipetrain.reporting.steps_to_loss import (
    LossCurve,
    loss_at,
    slowdown,
    smoothing_of,
    steps_to_loss,
    target_of,
    trailing_mean,
)

CURVE = LossCurve([10.0, 20.0, 30.0, 50.0], [4.0, 3.0, 3.5, 1.5])
CURVES = st.lists(st.tuples(st.integers(1, 50), st.floats(0.01, 100.0)), min_size=1, max_size=30).map(
    lambda pairs: LossCurve(
        [float(sum(width for width, _ in pairs[: number + 1])) for number in range(len(pairs))], [y for _, y in pairs]
    )
)


@pytest.mark.parametrize(
    ("target", "steps"),
    [(5.0, 10.0), (4.0, 10.0), (3.25, 17.5), (3.0, 20.0), (2.5, 40.0), (1.5, 50.0), (1.4, math.inf)],
)
def test_steps_are_those_of_first_crossing_on_a_straight_line(target, steps):
    assert steps_to_loss(CURVE, target) == steps


@pytest.mark.parametrize(("step", "loss"), [(1, 4.0), (10, 4.0), (15, 3.5), (30, 3.5), (35, 3.0), (50, 1.5), (99, 1.5)])
def test_loss_at_a_step_is_on_a_straight_line(step, loss):
    assert loss_at(CURVE, step) == loss


@pytest.mark.parametrize(
    ("width", "means"),
    [
        (1, [4.0, 3.0, 3.5, 1.5]),
        (20, [4.0, 3.5, 3.25, 1.5]),
        (30, [4.0, 3.5, 3.5, 6.5 / 3]),
        (99, [4.0, 3.5, 3.5, 2.7]),
    ],
)
def test_trailing_mean_counts_each_loss_as_often_as_it_has_steps(width, means):
    assert trailing_mean(CURVE, width).losses == pytest.approx(means)
    assert trailing_mean(CURVE, width).steps == CURVE.steps


def test_curve_without_losses_reaches_nothing():
    empty = LossCurve([], [])
    assert steps_to_loss(trailing_mean(empty, 5), 1.0) == math.inf


@given(CURVES, st.floats(0.01, 100.0), st.integers(2, 9))
def test_curve_that_is_stretched_takes_as_many_times_the_steps(curve, target, factor):
    stretched = LossCurve([factor * step for step in curve.steps], curve.losses)
    assert steps_to_loss(stretched, target) == pytest.approx(factor * steps_to_loss(curve, target))
    smooth, stretched = trailing_mean(curve, 20), trailing_mean(stretched, 20 * factor)
    assert stretched.losses == pytest.approx(smooth.losses)


@given(CURVES, st.floats(0.0, 1.0))
def test_curve_reaches_its_own_loss_no_later_than_where_it_has_it(curve, share):
    step = share * curve.steps[-1]
    assert steps_to_loss(curve, loss_at(curve, step) + 1e-9) <= max(step, curve.steps[0]) + 1e-6


@given(CURVES, st.floats(0.01, 100.0), st.floats(0.0, 5.0))
def test_lower_loss_takes_at_least_as_many_steps(curve, target, less):
    assert steps_to_loss(curve, target - less) >= steps_to_loss(curve, target)


@given(CURVES, st.integers(1, 60))
def test_trailing_mean_stays_within_the_losses_and_keeps_a_constant(curve, width):
    means = trailing_mean(curve, width).losses
    assert all(min(curve.losses) - 1e-9 <= each <= max(curve.losses) + 1e-9 for each in means)
    constant = LossCurve(curve.steps, [2.5] * len(curve.steps))
    assert trailing_mean(constant, width).losses == pytest.approx(constant.losses)


def test_target_and_smoothing_are_means_over_the_runs_of_the_baseline():
    baseline = [CURVE, LossCurve([0.0, 100.0], [10.0, 0.0])]
    assert target_of(baseline) == pytest.approx((3.0 + 3.0) / 2)  # at steps 35 and 70
    assert smoothing_of(baseline) == pytest.approx(0.05 * 75)


def test_slowdown_is_paired_with_the_seeds_that_both_have():
    baseline = {0: 10.0, 1: 20.0, 2: 90.0}
    assert slowdown({0: 20.0, 1: 40.0}, baseline).middle == pytest.approx(2.0)
    assert slowdown({0: 20.0, 1: 44.0}, baseline).how == "paired, 2 seeds"
    assert slowdown({0: 20.0, 1: 44.0, 3: 80.0}, baseline).how == "paired, 2 seeds"
    assert slowdown({0: 20.0, 3: 40.0}, baseline).how == "unpaired, 2 and 3 runs"
    assert slowdown({0: 20.0, 1: math.inf}, baseline).middle == math.inf


@given(st.lists(CURVES, min_size=2, max_size=4), st.integers(1, 9))
def test_runs_stretched_by_a_factor_have_it_as_their_slowdown(curves, factor):
    target = max(curve.losses[-1] for curve in curves)  # which all reach
    stretched = [LossCurve([factor * step for step in curve.steps], curve.losses) for curve in curves]
    baseline, ours = ({seed: steps_to_loss(c, target) for seed, c in enumerate(each)} for each in (curves, stretched))
    found = slowdown(ours, baseline)
    assert (found.middle, found.low, found.high) == pytest.approx((factor, factor, factor))
