"""A method with a running statistic that the package does not know, against a reference by hand."""

import torch
from support.pipelines import batches, pipeline
from support.polyak import Polyak
from torch import nn

from pipetrain.engine.schedules.one_f_one_b import OneFOneB


def test_own_statistic_is_read_without_undeclared_versions():
    torch.manual_seed(0)
    layers = [nn.Linear(3, 3, bias=False).double() for _ in range(2)]
    x, y = torch.randn(24, 3).double(), torch.arange(24) % 3
    expected = by_hand([layer.weight.detach().clone() for layer in layers], x, y)
    pipe = pipeline(
        nn.Sequential(*layers),
        [1],
        (Polyak(), OneFOneB()),
        build=lambda p: torch.optim.SGD(p, lr=0.0),
        rate=lambda _k: 0.1,
    )
    pipe.train(batches(x, y, 4))
    for ours, theirs in zip(pipe.state().values(), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)
    assert pipe.reports("weight_versions_max") == [2, 2]


def by_hand(weights, x, y):
    """Two stages of one matrix each under 1F1B: the first reads its forward's weights an update early."""
    versions = [[w] for w in weights]
    for t in range(6):
        xs, ys = x[4 * t : 4 * t + 4], y[4 * t : 4 * t + 4]
        first = torch.stack(versions[0][: max(1, t)]).mean(0)
        second = torch.stack(versions[1][: t + 1]).mean(0)
        hidden = (xs @ first.T).requires_grad_()
        scores = (hidden @ second.T).requires_grad_()
        (g,) = torch.autograd.grad(nn.functional.cross_entropy(scores, ys), scores)
        back = g @ versions[1][t]
        versions[0].append(versions[0][t] - 0.1 * back.T @ xs)
        versions[1].append(versions[1][t] - 0.1 * g.T @ hidden.detach())
    return [each[-1] for each in versions]
