import random

import pytest

from pipetrain.theory.stale_bound import NoisyQuadratic


def test_plain_sgd_breaks_the_printed_bound_and_keeps_the_derived_one():
    case = NoisyQuadratic(rate=0.1)
    assert case.printed_bound() < case.mean_squared_gradient(10_000) < case.derived_bound()


def test_mean_squared_gradient_is_that_of_a_simulation():
    case, w, total, draw = NoisyQuadratic(rate=0.1), 0.0, 0.0, random.Random(0)
    for _ in range(20_000):
        total += w**2
        sample = w + draw.choice((-1.0, 1.0))
        assert sample**2 <= case.largest_square
        w -= case.rate * sample
    assert total / 20_000 == pytest.approx(case.mean_squared_gradient(20_000), rel=0.05)
