"""torch's fused steps: where they are taken, and that they are the steps of the formulas."""

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adagrad, Adam, AdamW, NAdam, RMSprop

from pipetrain.config.instantiate import Target
from pipetrain.config.settings import OptimizerSettings
from pipetrain.optim.fused import can_be_fused
from pipetrain.optim.stage_optimizer import StageOptimizer
from pipetrain.run.builders.optimizer import build_torch_optimizer

FUSED = {
    "sgd": (SGD, {"weight_decay": 0.01}),
    "momentum": (SGD, {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.01}),
    "nesterov": (SGD, {"momentum": 0.9, "nesterov": True}),
    "adam": (Adam, {"weight_decay": 0.01}),
    "adamw": (AdamW, {"weight_decay": 0.1}),
    "adagrad": (Adagrad, {"lr_decay": 0.1, "weight_decay": 0.01}),
}
SHAPES = {"weight": (37, 29), "bias": (29,)}


def parameters(dtype=torch.float32, device="cpu"):
    torch.manual_seed(0)
    return {name: nn.Parameter(torch.randn(shape, dtype=dtype, device=device)) for name, shape in SHAPES.items()}


def gradients(step, names=SHAPES):
    torch.manual_seed(100 + step)
    return {name: torch.randn(SHAPES[name]) for name in names}


def steps(build, each):
    """The weights after a step for the gradients of each of these names."""
    ours = parameters()
    optimizer = StageOptimizer(build, ours, lambda k: 0.1 / (k + 1))
    for step, names in enumerate(each):
        optimizer.step(gradients(step, names))
    return ours


def configured(path, parameters, **options):
    settings = OptimizerSettings(Target("optimizer", path, {"lr": 0.1, **options}), 0.1, None)
    return build_torch_optimizer(settings, list(parameters.values()))


def assert_close(ours, plain):
    for name in SHAPES:
        torch.testing.assert_close(ours[name], plain[name], rtol=2e-6, atol=2e-7)


@pytest.mark.parametrize("kind", FUSED)
def test_fused_steps_are_the_plain_ones_to_rounding(kind):
    optimizer, options = FUSED[kind]
    each = [list(SHAPES)] * 6
    fused, plain = (steps(lambda p, f=f: optimizer(p, lr=0.1, fused=f, **options), each) for f in (True, False))
    assert_close(fused, plain)


@pytest.mark.parametrize("kind", FUSED)
def test_fused_step_takes_a_weight_whose_first_gradient_comes_late(kind):
    optimizer, options = FUSED[kind]
    each = [["weight"], ["weight"], ["weight", "bias"], ["bias"], ["weight", "bias"]]
    fused, plain = (steps(lambda p, f=f: optimizer(p, lr=0.1, fused=f, **options), each) for f in (True, False))
    assert_close(fused, plain)


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW", "Adagrad"])
def test_run_takes_the_fused_form_of_an_optimizer_that_has_one(kind):
    optimizer = configured(f"torch.optim.{kind}", parameters())
    assert [group["fused"] for group in optimizer.param_groups] == [True]


@pytest.mark.parametrize("kind", ["NAdam", "RMSprop", "Rprop"])
def test_run_takes_an_optimizer_without_a_fused_form_as_it_is(kind):
    assert not configured(f"torch.optim.{kind}", parameters()).defaults.get("fused")


@pytest.mark.parametrize("chosen", [{"fused": False}, {"foreach": True}, {"foreach": False}, {"differentiable": True}])
def test_form_that_the_user_chose_stays(chosen):
    optimizer = configured("torch.optim.SGD", parameters(), **chosen)
    assert {name: optimizer.defaults[name] for name in chosen} == chosen
    assert not optimizer.defaults["fused"]


def test_only_devices_and_types_that_torch_fuses_are_fused():
    assert can_be_fused(Adam([torch.zeros(1)]), parameters(torch.float64).values())
    assert not can_be_fused(Adam([torch.zeros(1)]), parameters(torch.complex64).values())
    assert not can_be_fused(Adam([torch.zeros(1)]), parameters(device="meta").values())
    assert not any(can_be_fused(kind([torch.zeros(1)]), parameters().values()) for kind in (NAdam, RMSprop))
