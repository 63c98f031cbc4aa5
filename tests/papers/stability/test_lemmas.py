"""The lemmas of PipeMare's appendix, against the largest stable step."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from papers.stability import lemmas
from papers.stability.limits import largest_stable_step
from papers.stability.quadratic import Quadratic

QUICK = settings(max_examples=40)


@QUICK
@given(st.integers(1, 40), st.floats(0, 0.99), st.floats(1e-3, 100), st.floats(0.1, 10))
def test_lemma_2_and_the_step_of_its_proof_hold(forward, share, discrepancy, curvature):
    model = Quadratic(forward, int(share * forward), curvature=curvature, discrepancy=discrepancy * curvature)
    found = largest_stable_step(model)
    assert found == pytest.approx(lemmas.discrepancy_limit(model), rel=1e-8)
    assert found <= lemmas.discrepancy_bound(model)


@QUICK
@given(st.integers(0, 40), st.floats(0.01, 0.99), st.floats(0.1, 10))
def test_lemma_3_and_the_step_of_its_proof_hold(tau, momentum, curvature):
    found = largest_stable_step(Quadratic(tau, curvature=curvature, momentum=momentum))
    assert found == pytest.approx(lemmas.momentum_limit(tau, momentum, curvature), rel=1e-8)
    assert found <= lemmas.momentum_bound(tau, curvature)
