"""The largest stable step: closed forms, roots and the simulated recurrence agree."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from papers.stability import lemmas
from papers.stability.limits import (
    crossings,
    decays,
    first_unstable,
    largest_stable_step,
    simulated_limit,
    spectral_radius,
    weights,
)
from papers.stability.quadratic import Quadratic, gamma_of_decay, matched_gamma

QUICK = settings(max_examples=40)
FIG10 = Quadratic(40, 10, discrepancy=5.0, gamma=matched_gamma(40, 10))


@st.composite
def models(draw, longest=12):
    forward = draw(st.integers(0, longest))
    backward = draw(st.integers(0, forward))
    t2 = backward < forward and draw(st.booleans())
    return Quadratic(
        forward,
        backward,
        draw(st.integers(backward, forward)),
        curvature=draw(st.sampled_from([0.1, 1.0, 30.0])),
        discrepancy=draw(st.sampled_from([0.0, 0.5, 5.0, -5.0, 50.0])),
        recompute_discrepancy=draw(st.sampled_from([0.0, -2.5, 1.0])),
        momentum=draw(st.sampled_from([0.0, 0.3, 0.9])),
        gamma=draw(st.sampled_from([0.0, 0.5, 0.9])) if t2 else None,
        printed=draw(st.booleans()),
    )


def scanned(model):
    """The first step size at which the spectral radius reaches 1, found by magnitudes alone."""
    low = 0.0
    for high in np.geomspace(1e-4, 10, 60) / model.curvature:
        if spectral_radius(model, high) >= 1:
            for _ in range(40):
                middle = (low + high) / 2
                low, high = (middle, high) if spectral_radius(model, middle) < 1 else (low, middle)
            return low
        low = high
    raise AssertionError("never unstable")


def companion(model, alpha):
    """One step of the recurrence as a matrix, column by column."""
    size = model.tau_forward + 1
    states = []
    for unit in np.eye(2 * size + 1):
        w, delta, velocity = unit[:size], unit[size : 2 * size], unit[-1]  # newest first
        gradient = 0.0
        for read in model.reads():
            extrapolated = (model.tau_forward - read.tau) * delta[model.lag(read)] if read.corrected else 0.0
            gradient += read.factor * (w[read.tau] - extrapolated)
        velocity = model.momentum * velocity - alpha * gradient
        gamma = model.gamma or 0.0
        states.append([w[0] + velocity, *w[:-1], gamma * delta[0] + (1 - gamma) * velocity, *delta[:-1], velocity])
    return np.array(states).T


@QUICK
@given(models(), st.floats(1e-3, 0.5))
def test_polynomial_is_that_of_the_recurrence(model, alpha):
    alpha /= model.curvature
    matrix = np.abs(np.linalg.eigvals(companion(model, alpha))).max()
    assert spectral_radius(model, alpha) == pytest.approx(matrix, rel=1e-6, abs=1e-3)


@pytest.mark.slow
@QUICK
@given(models())
def test_largest_stable_step_has_spectral_radius_one(model):
    found = largest_stable_step(model)
    assert found == pytest.approx(scanned(model), rel=1e-6)
    assert spectral_radius(model, 0.98 * found) < 1 < spectral_radius(model, 1.02 * found)


@QUICK
@given(models(), st.floats(0.01, 100))
def test_step_size_scales_with_one_over_the_curvature(model, scale):
    scaled = replace(
        model,
        curvature=model.curvature * scale,
        discrepancy=model.discrepancy * scale,
        recompute_discrepancy=model.recompute_discrepancy * scale,
    )
    assert largest_stable_step(scaled) * scale == pytest.approx(largest_stable_step(model), rel=1e-7)


@settings(max_examples=8)
@given(models(longest=8))
def test_recurrence_decays_below_the_limit_and_grows_above(model):
    limit = largest_stable_step(model)
    assert decays(model, np.array([0.97, 1.03]) * limit, 4000) == [True, False]


@QUICK
@given(models())
def test_printed_polynomial_without_backward_delay_is_the_rule(model):
    model = replace(model, tau_backward=0, recompute_discrepancy=0.0)
    printed, rule = replace(model, printed=True), replace(model, printed=False)
    assert printed.forced().coef == pytest.approx(rule.forced().coef)


@QUICK
@given(models(), st.sampled_from([0.3, 0.9]))
def test_without_discrepancy_t2_changes_nothing(model, gamma):
    plain = replace(model, discrepancy=0.0, recompute_discrepancy=0.0, gamma=None)
    corrected = largest_stable_step(replace(plain, gamma=gamma))
    assert corrected == pytest.approx(largest_stable_step(plain), rel=1e-7)


@pytest.mark.parametrize("tau", [0, 1, 2, 3, 7, 10, 31, 40, 107])
def test_lemma_1_limit_has_spectral_radius_one(tau):
    found = first_unstable(Quadratic(tau, curvature=2.0))
    assert found.alpha == pytest.approx(np.sin(np.pi / (4 * tau + 2)), rel=1e-10)
    assert found.angle == pytest.approx(np.pi / (2 * tau + 1), rel=1e-10)


@pytest.mark.parametrize("tau", [1, 4, 20])
def test_lemma_1_double_root_is_the_spectral_radius(tau):
    alpha = (tau / (tau + 1)) ** tau / (tau + 1)
    assert spectral_radius(Quadratic(tau), alpha) == pytest.approx(tau / (tau + 1), abs=1e-6)


@QUICK
@given(models())
def test_root_on_the_circle_is_as_near_to_one_as_lemma_4_says(model):
    model = replace(model, momentum=0.0)
    for crossing in crossings(model):
        assert crossing.distance <= lemmas.crossing_constant(model) * crossing.alpha * (1 + 1e-7)


def test_momentum_without_a_delay_doubles_at_most():
    assert largest_stable_step(Quadratic(0, momentum=0.5)) == pytest.approx(2 * 1.5)


@pytest.mark.parametrize(("printed", "limit", "first_of_a_grid"), [(True, 0.018059, 0.0185), (False, 0.037743, 0.038)])
def test_fig_10_at_discrepancy_5_agrees_by_roots_and_simulation(printed, limit, first_of_a_grid):
    model = replace(FIG10, printed=printed)
    assert largest_stable_step(model) == pytest.approx(limit, abs=1e-6)
    assert simulated_limit(model, 5000) == pytest.approx(limit, rel=2e-3)
    grid = np.arange(1, 100) * 0.0005
    assert next(alpha for alpha in grid if spectral_radius(model, alpha) >= 1) == pytest.approx(first_of_a_grid)


@pytest.mark.parametrize("printed", [True, False])
def test_t2_with_recomputation_raises_largest_stable_step(printed):
    gamma = gamma_of_decay(0.1, 10, 1)
    model = Quadratic(10, 1, 4, 1.0, 10.0, -5.0, gamma=gamma, printed=printed)
    found = largest_stable_step(model)
    assert found > 3 * largest_stable_step(replace(model, gamma=None))
    assert simulated_limit(model, 5000) == pytest.approx(found, rel=2e-3)


def test_recurrence_equals_the_one_by_hand():
    model = Quadratic(2, 1, discrepancy=1.0, gamma=0.5)
    w = weights(model, np.array([0.1]), 3)[:, 0]
    # w_1 = 1 - 0.1 (2·1 - 1), δ_1 = 0.5 (w_1 - w_0); w_2 = w_1 - 0.1 (2·1 - (w_0 - δ_1)), δ_2; w_3 likewise
    delta_1 = 0.5 * (0.9 - 1.0)
    second = 0.9 - 0.1 * (2.0 - (1.0 - delta_1))
    delta_2 = 0.5 * delta_1 + 0.5 * (second - 0.9)
    third = second - 0.1 * (2.0 * 1.0 - (0.9 - delta_2))
    assert w == pytest.approx([1.0, 0.9, second, third])
