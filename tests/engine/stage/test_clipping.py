"""Gradient clipping, against torch's own."""

import pytest
import torch
from torch import nn

from pipetrain.engine.stage.gradients import clipped, squared_norm


def gradients(step, dtype=torch.float32):
    torch.manual_seed(100 + step)
    return {"weight": torch.randn(3, 2, dtype=dtype), "bias": torch.randn(3, dtype=dtype)}


@pytest.mark.parametrize(("dtype", "scale", "tolerance"), [(torch.float32, 1, 1e-6), (torch.float64, 1e25, 1e-14)])
@pytest.mark.parametrize("limit", [0.1, 1.0, 100.0])
def test_clipping_over_stages_equals_torch_on_whole_model(limit, dtype, scale, tolerance):
    torch.manual_seed(3)
    whole = {f"{s}.{name}": scale * value for s in range(3) for name, value in gradients(s, dtype).items()}
    stages = [{n: v for n, v in whole.items() if n.startswith(f"{s}.")} for s in range(3)]
    norms = [squared_norm(stage) for stage in stages]
    plain = [nn.Parameter(torch.zeros_like(value)) for value in whole.values()]
    for parameter, value in zip(plain, whole.values(), strict=True):
        parameter.grad = value.clone()
    ours = {n: v for stage in stages for n, v in clipped(stage, norms, limit).items()}
    nn.utils.clip_grad_norm_(plain, limit)
    for parameter, name in zip(plain, whole, strict=True):
        torch.testing.assert_close(ours[name], parameter.grad, rtol=tolerance, atol=0)


def test_clipping_works_in_the_memory_of_the_gradients():
    given = gradients(0)
    before = {name: value.data_ptr() for name, value in given.items()}
    assert {name: value.data_ptr() for name, value in clipped(given, [squared_norm(given)], 0.01).items()} == before


def test_gradients_below_the_limit_keep_their_bits():
    given = gradients(0)
    before = {name: value.clone() for name, value in given.items()}
    ours = clipped(given, [squared_norm(given)], 1e6)
    assert all(torch.equal(ours[name], before[name]) for name in given)


def test_squared_norm_of_no_gradients_is_zero():
    assert squared_norm({}).item() == 0.0


@pytest.mark.parametrize("limit", [0.1, 100.0])
def test_device_stage_is_clipped_by_own_norm_without_sync(monkeypatch, limit):
    expected = clipped(gradients(0), [squared_norm(gradients(0))], limit)
    monkeypatch.setattr("pipetrain.engine.stage.gradients.queues", lambda _device: True)
    monkeypatch.setattr(torch.Tensor, "item", lambda _: pytest.fail("the host waits"))
    ours = clipped(gradients(0), [squared_norm(gradients(0))], limit)
    assert all(torch.equal(ours[name], expected[name]) for name in expected)
