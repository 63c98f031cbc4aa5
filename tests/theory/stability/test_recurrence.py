"""The simulated recurrence of the quadratic model."""

import numpy as np
import pytest

from pipetrain.theory.stability.quadratic import Quadratic
from pipetrain.theory.stability.recurrence import weights


def test_recurrence_equals_the_one_by_hand():
    model = Quadratic(2, 1, discrepancy=1.0, gamma=0.5)
    w = weights(model, np.array([0.1]), 3)[:, 0]
    # w_1 = 1 - 0.1 (2·1 - 1), δ_1 = 0.5 (w_1 - w_0); w_2 = w_1 - 0.1 (2·1 - (w_0 - δ_1)), δ_2; w_3 likewise
    delta_1 = 0.5 * (0.9 - 1.0)
    second = 0.9 - 0.1 * (2.0 - (1.0 - delta_1))
    delta_2 = 0.5 * delta_1 + 0.5 * (second - 0.9)
    third = second - 0.1 * (2.0 * 1.0 - (0.9 - delta_2))
    assert w == pytest.approx([1.0, 0.9, second, third])
