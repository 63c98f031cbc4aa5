"""LARS against its formula written out in plain Python."""

import math

import pytest
import torch
from support.pipelines import batches, pipeline
from torch import nn

from pipetrain.engine.tensors import as_real
from pipetrain.zoo.optim.lars import LARS


def by_hand(weights, gradients, *, lr, momentum, decay, trust):
    """w after a step for each gradient: v = m·v + γ·λ·(g + β·w), λ = η·|w| / (|g| + β·|w|)."""
    v = [0.0] * len(weights)
    for g in gradients:
        of_w, of_g = math.hypot(*weights), math.hypot(*g)
        rate = trust * of_w / (of_g + decay * of_w) if of_w and of_g else 1.0
        v = [momentum * a + lr * rate * (b + decay * w) for a, b, w in zip(v, g, weights, strict=True)]
        weights = [w - a for w, a in zip(weights, v, strict=True)]
    return weights


@pytest.mark.parametrize("weights", [[3.0, -4.0, 1.0], [0.0, 0.0, 0.0]], ids=["weight", "zero bias"])
def test_steps_are_those_of_the_paper(weights):
    gradients = [[0.1, 0.2, -0.3], [1.0, -2.0, 0.5], [0.0, 0.0, 0.0], [0.4, 0.4, 0.4]]
    parameter = nn.Parameter(torch.tensor(weights, dtype=torch.float64))
    optimizer = LARS([parameter], lr=2.0, momentum=0.9, weight_decay=0.01, trust=0.05)
    for gradient in gradients:
        parameter.grad = torch.tensor(gradient, dtype=torch.float64)
        optimizer.step()
    assert parameter.tolist() == pytest.approx(
        by_hand(weights, gradients, lr=2.0, momentum=0.9, decay=0.01, trust=0.05), abs=1e-12
    )


def test_complex_weights_are_treated_as_their_parts():
    torch.manual_seed(0)
    weight, gradients = torch.randn(4, dtype=torch.complex128), torch.randn(5, 4, dtype=torch.complex128)
    ours, theirs = nn.Parameter(weight.clone()), nn.Parameter(as_real(weight).clone())
    for parameter, form in ((ours, torch.clone), (theirs, as_real)):
        optimizer = LARS([parameter])
        for gradient in gradients:
            parameter.grad = form(gradient).clone()
            optimizer.step()
    torch.testing.assert_close(as_real(ours.detach()), theirs.detach(), rtol=1e-12, atol=0)
    assert not torch.allclose(ours.detach(), weight)


def test_bits_do_not_depend_on_the_stages():
    def state(cuts):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        pipe = pipeline(net, cuts, "gpipe", build=lambda p: LARS(p, lr=0.0))
        return pipe.train(batches(torch.randn(12, 4), torch.arange(12) % 4, 4)).state()

    one, two = state([]), state([1])
    assert all(torch.equal(one[name], two[name]) for name in one)
