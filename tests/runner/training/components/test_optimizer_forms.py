"""The form of an optimizer that a run takes, and the rates that it was made with."""

import sys
import types
from functools import partial

import pytest
import torch
from torch import nn
from torch.optim import Adam, NAdam, Optimizer, RMSprop

from pipetrain.engine.optim.stage_optimizer import StageOptimizer
from pipetrain.runner.config.instantiate import GivenObject, Target
from pipetrain.runner.config.optimizer import OptimizerSettings
from pipetrain.runner.training.components.optimizer import build_torch_optimizer, can_be_fused


def parameters():
    torch.manual_seed(0)
    return {"weight": nn.Parameter(torch.randn(3, 2)), "bias": nn.Parameter(torch.randn(3))}


def configured(path, parameters, **options):
    settings = OptimizerSettings(0.1, target=Target("optimizer", path, {"lr": 0.1, **options}))
    return build_torch_optimizer(settings, list(parameters.values()))


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW", "Adagrad"])
def test_run_takes_the_fused_form_of_an_optimizer_that_has_one(kind):
    optimizer = configured(f"torch.optim.{kind}", parameters())
    assert [group["fused"] for group in optimizer.param_groups] == [True]


@pytest.mark.parametrize("kind", ["NAdam", "RMSprop", "Rprop"])
def test_run_takes_an_optimizer_without_a_fused_form_as_it_is(kind):
    assert not configured(f"torch.optim.{kind}", parameters()).defaults.get("fused")


def test_function_that_takes_no_form_makes_the_optimizer_as_it_does(monkeypatch):
    own = types.SimpleNamespace(make=lambda params, lr: torch.optim.SGD(params, lr=lr))
    monkeypatch.setitem(sys.modules, "own_optimizers", own)
    assert not configured("own_optimizers.make", parameters()).defaults["fused"]


@pytest.mark.parametrize("chosen", [{"fused": False}, {"foreach": True}, {"foreach": False}, {"differentiable": True}])
def test_form_that_the_user_chose_stays(chosen):
    optimizer = configured("torch.optim.SGD", parameters(), **chosen)
    assert {name: optimizer.defaults[name] for name in chosen} == chosen
    assert not optimizer.defaults["fused"]


def test_only_devices_and_types_that_torch_fuses_are_fused():
    def fused(kind, **how):
        return can_be_fused(kind([torch.zeros(1)]), [torch.zeros(1, **how)])

    assert fused(Adam, dtype=torch.float64)
    assert not fused(Adam, dtype=torch.complex64)
    assert not fused(Adam, device="meta")
    assert not any(map(fused, (NAdam, RMSprop)))


def in_groups(*, lr=0.05, default=None):
    """A function that makes SGD with a tenth of the rate for vectors."""

    def make(given, lr=lr):
        matrices, vectors = ([p for p in given if (p.dim() > 1) is wanted] for wanted in (True, False))
        groups = [{"params": matrices, "lr": lr}, {"params": vectors, "lr": lr / 10}]
        return torch.optim.SGD([group for group in groups if group["params"]], **default or {})

    return make


class WithoutDefaults(Optimizer):
    """As optimizers of several algorithms, whose groups have all settings."""

    def __init__(self, given):
        super().__init__([{"params": g["params"], "lr": g["lr"]} for g in in_groups()(given).param_groups], {})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(group["lr"] * parameter.grad)


@pytest.mark.parametrize(
    ("build", "lr"),
    [
        (in_groups(), 0.2),
        (in_groups(lr=0.001), 0.01),  # the rate of the vectors is torch's default
        (lambda given: in_groups(default={"lr": 0.05})(given), 0.2),
        (lambda given: in_groups()(given), 0.2),
        (WithoutDefaults, 0.2),
    ],
)
def test_groups_that_an_optimizer_was_made_with_keep_the_proportions_of_their_rates(build, lr):
    target = GivenObject("optimizer", "object:make", {"lr": lr}, value=build)
    make = partial(build_torch_optimizer, OptimizerSettings(lr, target=target))
    named, expected = parameters(), {"weight": pytest.approx(lr, abs=1e-6), "bias": pytest.approx(lr / 10, abs=1e-6)}
    optimizer = StageOptimizer(make, named, lambda _k: lr)
    assert optimizer.coming_learning_rates(1) == {name: [rate] for name, rate in expected.items()}
    before = {name: value.detach().clone() for name, value in named.items()}
    optimizer.step({name: torch.ones_like(value) for name, value in named.items()})
    assert {name: (before[name] - named[name]).mean().item() for name in named} == expected
    for name, parameter in named.items():  # on stages of their own
        alone = StageOptimizer(make, {name: parameter}, lambda _k: lr)
        assert alone.coming_learning_rates(1) == {name: [expected[name]]}


def test_groups_whose_rate_is_the_default_have_no_factor():
    target = GivenObject("optimizer", "object:make", {"lr": 0.2}, value=lambda given: torch.optim.SGD(given, lr=0.05))
    optimizer = build_torch_optimizer(OptimizerSettings(0.2, target=target), list(parameters().values()))
    assert "lr_scale" not in optimizer.param_groups[0]
