"""The quadratic model: its γ, and what it may be made of."""

import numpy as np
import pytest

from papers.stability.quadratic import Quadratic, gamma_of_decay, matched_gamma, rule_matched_gamma
from pipetrain.engine.errors import ConfigError


def test_gamma_follows_its_definition():
    assert matched_gamma(40, 10) == pytest.approx(1 - 2 / 31)
    assert matched_gamma(7, 0) == rule_matched_gamma(7, 0)
    assert gamma_of_decay(0.1, 10, 6) == pytest.approx(0.1**0.25)
    assert matched_gamma(1000, 0) ** 1000 == pytest.approx(np.exp(-2), rel=1e-5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Quadratic(-1), "tau_forward=-1: must be 0 or more"),
        (lambda: Quadratic(3, 4), "tau_backward=4: must be between 0 and tau_forward=3"),
        (lambda: Quadratic(9, 4, 3, recompute_discrepancy=1.0), "tau_recompute=3: .* tau_backward=4 and tau_forward=9"),
        (lambda: Quadratic(3, curvature=0.0), "curvature=0: must be above 0"),
        (lambda: Quadratic(3, momentum=1.0), "momentum=1: must be at least 0 and below 1"),
        (lambda: Quadratic(3, gamma=1.0), "gamma=1: "),
        (lambda: matched_gamma(3, 3), "tau_forward=3 is not above tau_backward=3"),
        (lambda: gamma_of_decay(1.0, 3, 0), "decay=1: .* the paper uses 0.1 and 0.5"),
    ],
)
def test_impossible_models_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
