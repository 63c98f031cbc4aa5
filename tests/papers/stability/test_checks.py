"""The claims of app. B.4, for the printed polynomial and for that of the rule."""

import pytest

from papers.stability.checks import claim_checks, taylor_slope
from papers.stability.quadratic import matched_gamma


@pytest.mark.slow
def test_claim_of_app_b4_holds_for_its_polynomial_only():
    assert [check.holds for check in claim_checks()] == [True, True, False, False, True]
    for forward, backward in ((40, 10), (7, 3)):
        gamma = matched_gamma(forward, backward)
        slope = (forward - backward) * (1 - gamma) * 2 * backward
        assert taylor_slope((forward, backward), gamma, printed=False) == pytest.approx(slope)
