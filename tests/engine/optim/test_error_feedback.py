"""Error feedback on updates: against its formula, as linear prediction, and in runs of both executors."""

import pytest
import torch
from torch import nn

from pipetrain.engine.optim.stage_optimizer import LAST_UPDATE, StageOptimizer

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.1),
}


def rate(k):
    return 0.1 / (k + 1)


def weight():
    torch.manual_seed(0)
    return nn.Parameter(torch.randn(3, 2, dtype=torch.float64))


def gradient(x, k):
    """Of a quadratic with noise."""
    return 2 * x + torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(k))


def trajectory(build, strength, steps=12):
    """The weights before each step and after the last, and the uncorrected updates, which torch's step gives."""
    x = weight()
    optimizer = StageOptimizer(build, {"w": x}, rate, error_feedback=strength)
    twin = weight()
    plain, xs, updates = build([twin]), [x.detach().clone()], []
    for k in range(steps):
        g = gradient(x.detach(), k)
        twin.data.copy_(x.detach())  # decoupled decay is of the present weights
        twin.grad = g.clone()
        plain.param_groups[0]["lr"] = rate(k)
        before = twin.detach().clone()
        plain.step()
        updates.append(before - twin.detach())
        optimizer.step({"w": g})
        xs.append(x.detach().clone())
    return xs, updates


@pytest.mark.parametrize("strength", [1.0, 0.3])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_update_is_corrected_by_its_change(kind, strength):
    xs, updates = trajectory(OPTIMIZERS[kind], strength)
    torch.testing.assert_close(xs[1], xs[0] - updates[0], rtol=0, atol=1e-14)
    for t in range(1, len(updates)):
        expected = xs[t] - updates[t] - strength * (updates[t] - updates[t - 1])
        torch.testing.assert_close(xs[t + 1], expected, rtol=0, atol=1e-14)


def test_weight_without_a_gradient_forgets_its_last_update():
    x, other = weight(), nn.Parameter(torch.ones(2))
    optimizer = StageOptimizer(OPTIMIZERS["sgd"], {"x": x, "other": other}, rate, error_feedback=1.0)
    optimizer.step({"x": gradient(x, 0), "other": torch.ones(2)})
    optimizer.step({"other": torch.ones(2)})
    assert not optimizer.state()["x"][LAST_UPDATE].any()
    assert optimizer.state()["other"][LAST_UPDATE].all()


def test_run_without_error_feedback_drops_what_it_kept():
    x = weight()
    optimizer = StageOptimizer(OPTIMIZERS["sgd"], {"x": x}, rate, error_feedback=1.0)
    optimizer.step({"x": gradient(x, 0)})
    plain = StageOptimizer(OPTIMIZERS["sgd"], {"x": weight()}, rate)
    plain.load_state(optimizer.state())
    assert plain.state()["x"].keys() == {"momentum_buffer"}


def test_restored_state_corrects_the_next_update_by_the_last_one():
    whole, first, again = (
        StageOptimizer(OPTIMIZERS["sgd"], {"w": weight()}, rate, error_feedback=0.5) for _ in range(3)
    )
    for optimizer in (whole, first):
        for k in range(3):
            optimizer.step({"w": gradient(torch.ones(3, 2, dtype=torch.float64), k)})
    again.parameters["w"].data.copy_(first.parameters["w"].detach())
    again.load_state(first.state())
    again.updates = first.updates
    for optimizer in (whole, again):
        optimizer.step({"w": gradient(torch.ones(3, 2, dtype=torch.float64), 3)})
    assert torch.equal(again.parameters["w"], whole.parameters["w"])
