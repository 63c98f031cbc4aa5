import random
from fractions import Fraction

import pytest
import torch
from torch import nn

from papers.publications.zhang_formulas import NoisyQuadratic, accelerators, count, hybrid_speedup
from pipetrain.graph.conversion import chain_of


def test_half_of_the_epochs_at_twice_the_speed_give_a_third_more():
    assert hybrid_speedup(Fraction(1, 2), Fraction(2)) == Fraction(4, 3)
    assert hybrid_speedup(Fraction(1), Fraction(3)) == 3


def test_four_stages_take_three_accelerators():
    assert accelerators(4) == 3


def test_plain_sgd_exceeds_printed_but_not_derived_bound():
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


MIB = 2**20


def test_module_outputs_count_twice_for_preceding_weight_layer():
    with torch.device("meta"):
        chain = chain_of(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
    found = count(chain, (4,))
    assert [size * MIB for size in found.by_layer] == [0, 2 * 4 * (8 + 8), 2 * 4 * 2]
    assert found.weights * MIB == 4 * (4 * 8 + 8 + 8 * 2 + 2)
    assert found.increase(1, 10, copies=2) == (found.before(1) * 10 + 2 * found.weights) / (
        found.activations * 10 + found.weights
    )
