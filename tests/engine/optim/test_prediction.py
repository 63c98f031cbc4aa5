"""Δ of every optimizer that has one, against the steps that torch makes."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.refusals import assert_refused
from torch import nn

from pipetrain.engine.optim.prediction import (
    DELTA_RULES,
    LAST_GRADIENT,
    DeltaRule,
    delta_rule,
    known_rule,
    rmsprop_delta,
)
from pipetrain.engine.optim.stage_optimizer import StageOptimizer

SHAPES = {"w": (2, 3), "b": (2,)}
FROZEN = {"w": torch.linspace(-1.2, 2, 6, dtype=torch.float64).reshape(2, 3), "b": torch.tensor([0.7, -0.4]).double()}
MOST = 0.6  # of the share that an average keeps: 0.6^80 is nothing beside 1
SETTLED = 80


def share(least=0.0):
    return st.floats(least, MOST)


def epsilon():
    return st.sampled_from([1e-8, 1e-3, 0.1])


def averages():
    return st.tuples(share(), share())


CONVERGING = {
    "sgd": (torch.optim.SGD, {}),
    "momentum": (torch.optim.SGD, {"momentum": share(0.1), "dampening": st.floats(0.0, 0.9)}),
    "nesterov": (torch.optim.SGD, {"momentum": share(0.1), "nesterov": st.just(value=True)}),
    "adam": (torch.optim.Adam, {"betas": averages(), "eps": epsilon()}),
    "adamw": (torch.optim.AdamW, {"betas": averages(), "eps": epsilon(), "weight_decay": st.just(0.0)}),
    # with ψ = 0 the shares μ never change, with a large one they soon stop changing
    "nadam": (
        torch.optim.NAdam,
        {"betas": averages(), "eps": epsilon(), "momentum_decay": st.sampled_from([0.0, 20.0, 200.0])},
    ),
    "rmsprop": (torch.optim.RMSprop, {"alpha": share(), "eps": epsilon()}),
    "rmsprop momentum": (torch.optim.RMSprop, {"alpha": share(), "eps": epsilon(), "momentum": share(0.1)}),
}
"""Optimizers whose steps become equal where the gradient stays, with their settings."""

DECAY = {"weight_decay": st.floats(0.0, 0.5)}
ALL = {
    **{name: (kind, choices | DECAY) for name, (kind, choices) in CONVERGING.items() if name not in ("sgd", "adamw")},
    "sgd": CONVERGING["sgd"],
    "adamw": CONVERGING["adamw"],
    "nadam psi": (torch.optim.NAdam, {"betas": averages(), "momentum_decay": st.floats(0.0, 1.0), **DECAY}),
    "centered": (
        torch.optim.RMSprop,
        {"alpha": share(0.2), "eps": epsilon(), "centered": st.just(value=True), **DECAY},
    ),
    "adagrad": (torch.optim.Adagrad, {"eps": epsilon(), "initial_accumulator_value": st.floats(0, 2), **DECAY}),
}  # fmt: skip
EXAMPLES = settings(max_examples=8)


def stage_optimizer(kind, rate=0.1, dtype=torch.float64, device="cpu", **chosen):
    torch.manual_seed(0)
    parameters = {name: nn.Parameter(torch.randn(shape, dtype=dtype).to(device)) for name, shape in SHAPES.items()}
    optimizer = StageOptimizer(lambda p: kind(p, lr=0.0, **chosen), parameters, lambda _k: rate)
    optimizer.keep_last_gradients(enabled=True)
    return optimizer


def weights(optimizer):
    return {name: parameter.detach().clone() for name, parameter in optimizer.parameters.items()}


def random_gradients(seed):
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, dtype=torch.float64, generator=generator) for name, shape in SHAPES.items()}


def freeze(optimizer, steps):
    for _ in range(steps):
        optimizer.step({name: gradient.clone() for name, gradient in FROZEN.items()})


def made(optimizer, gradients):
    """What one update does to the weights, per unit of learning rate."""
    before, rate = weights(optimizer), optimizer.next_learning_rate
    optimizer.step(gradients)
    after = weights(optimizer)
    return {name: (before[name] - after[name]) / rate for name in before}


def assert_close(ours, theirs, rtol=1e-9):
    assert ours.keys() == theirs.keys()
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=rtol, atol=1e-12)


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("name", ALL)
@EXAMPLES
@given(data=st.data(), steps=st.integers(1, 5), seed=st.integers(0, 99))
def test_delta_is_the_step_just_made_including_weight_decay(name, foreach, data, steps, seed):
    kind, choices = ALL[name]
    optimizer = stage_optimizer(kind, foreach=foreach, **data.draw(st.fixed_dictionaries(choices)))
    for step in range(steps):
        last = made(optimizer, random_gradients(seed + step))
    assert_close(optimizer.deltas(), last)


@pytest.mark.parametrize("name", CONVERGING)
@EXAMPLES
@given(data=st.data(), ahead=st.integers(1, 8))
def test_prediction_is_exact_once_the_moments_have_settled(name, data, ahead):
    kind, choices = CONVERGING[name]
    optimizer = stage_optimizer(kind, **data.draw(st.fixed_dictionaries(choices)))
    freeze(optimizer, SETTLED)
    start, deltas = weights(optimizer), optimizer.deltas()
    freeze(optimizer, ahead)
    assert_close({name: start[name] - ahead * 0.1 * deltas[name] for name in start}, weights(optimizer))


@pytest.mark.parametrize("ahead", [1, 5])
def test_settled_centered_rmsprop_steps_by_gradient_over_epsilon(ahead):
    optimizer = stage_optimizer(torch.optim.RMSprop, alpha=0.5, eps=0.5, centered=True)
    gradients = {name: torch.full(shape, 2.0, dtype=torch.float64) for name, shape in SHAPES.items()}
    for _ in range(100):  # of powers of 2, so that the variance is 0 and not nearly so
        optimizer.step(gradients)
    start, deltas = weights(optimizer), optimizer.deltas()
    assert_close(deltas, {name: gradient / 0.5 for name, gradient in gradients.items()})
    for _ in range(ahead):
        optimizer.step(gradients)
    assert_close({name: start[name] - ahead * 0.1 * deltas[name] for name in start}, weights(optimizer))


def test_centered_rmsprop_counts_a_negative_variance_as_zero():
    state = {"square_avg": torch.tensor([1 - 2**-24]), "grad_avg": torch.ones(1), LAST_GRADIENT: torch.tensor([3.0])}
    chosen = {"momentum": 0, "centered": True, "eps": 0.5}
    (delta,) = rmsprop_delta([state], chosen, 1)
    assert delta.item() == pytest.approx(6.0)


@pytest.mark.parametrize("ahead", [1, 8])
@pytest.mark.parametrize("before", [40, 400])
def test_adagrad_on_frozen_gradient_is_predicted_in_tolerance(before, ahead):
    optimizer = stage_optimizer(torch.optim.Adagrad)
    freeze(optimizer, before)
    start, deltas = weights(optimizer), optimizer.deltas()
    freeze(optimizer, ahead)
    for name, end in weights(optimizer).items():
        excess = ahead * 0.1 * deltas[name] / (start[name] - end) - 1
        assert (excess > 0).all()  # the sum of squares grows, so that real steps are shorter
        assert (excess < (ahead + 1) / (4 * before) * 1.1).all()


def test_adagrad_predicts_with_the_decay_of_the_next_update():
    # beside so large a sum of squares those that come are nothing: only the decay shortens the steps
    optimizer = stage_optimizer(torch.optim.Adagrad, rate=1e20, lr_decay=0.5, initial_accumulator_value=1e40)
    freeze(optimizer, 3)
    predicted = optimizer.deltas()
    assert_close(predicted, {name: g * 1e-20 / (1 + 3 * 0.5) for name, g in FROZEN.items()})
    following = made(optimizer, {name: gradient.clone() for name, gradient in FROZEN.items()})
    for name, delta in predicted.items():
        torch.testing.assert_close(delta * 1e20, following[name] * 1e20)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.NAdam])
def test_decoupled_decay_is_no_part_of_delta(kind):
    found = []
    for decay in (0.0, 0.5):
        more = {"decoupled_weight_decay": True} if kind is torch.optim.NAdam else {}
        optimizer = stage_optimizer(kind, weight_decay=decay, **more)
        optimizer.step(random_gradients(0))
        found.append(optimizer.deltas())
    assert_close(*found, rtol=0)


@pytest.mark.parametrize("name", ALL)
@EXAMPLES
@given(data=st.data())
def test_before_its_first_update_a_weight_has_no_delta(name, data):
    kind, choices = ALL[name]
    optimizer = stage_optimizer(kind, **data.draw(st.fixed_dictionaries(choices)))
    assert optimizer.deltas() == {}
    optimizer.step({"w": FROZEN["w"].clone()})
    assert optimizer.deltas().keys() == {"w"}


@pytest.mark.parametrize(
    ("kind", "chosen", "kept"),
    [
        (torch.optim.SGD, {}, True),
        (torch.optim.SGD, {"momentum": 0.9}, False),
        (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}, True),
        (torch.optim.Adam, {}, False),
        (torch.optim.AdamW, {}, False),
        (torch.optim.NAdam, {}, True),
        (torch.optim.RMSprop, {}, True),
        (torch.optim.RMSprop, {"momentum": 0.9}, False),
        (torch.optim.Adagrad, {}, True),
        (torch.optim.Rprop, {}, False),
    ],
)
def test_last_gradient_is_kept_only_where_a_delta_rule_takes_it(kind, chosen, kept):
    optimizer = stage_optimizer(kind, **chosen)
    freeze(optimizer, 2)
    assert all((LAST_GRADIENT in state) == kept for state in optimizer.state().values())


@pytest.mark.parametrize(("capturable", "place"), [(False, "cpu"), (True, "meta")])
def test_loaded_state_moves_to_device_except_host_counters(capturable, place):
    source = stage_optimizer(torch.optim.NAdam)
    freeze(source, 2)
    target = stage_optimizer(torch.optim.NAdam, device="meta", capturable=capturable)
    target.load_state(source.state())
    for state in target.state().values():
        places = {key: value.device.type for key, value in state.items()}
        assert (places.pop("step"), places.pop("mu_product")) == (place, place)
        assert set(places.values()) == {"meta"}


class Named(torch.optim.AdamW):
    """Steps as its parent does."""


class Cautious(torch.optim.AdamW):
    """Does not."""

    def step(self, closure=None):
        return super().step(closure)


def sign(states, _settings, _updates):
    return [state[LAST_GRADIENT].sign() for state in states]


class Signed(torch.optim.Optimizer):
    """Steps by the sign of the gradient, and says so."""

    delta_rule = DeltaRule(lambda _settings: (LAST_GRADIENT,), sign)

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, _closure=None):
        for p in self.param_groups[0]["params"]:
            p.sub_(p.grad.sign(), alpha=self.param_groups[0]["lr"])


class Louder(Signed):
    def step(self, closure=None):
        super().step(closure)


class Mute(Signed):
    delta_rule = None


class Confused(Signed):
    def delta_rule(self):
        return 1


def optimizer_of(kind):
    return kind([nn.Parameter(torch.ones(1))])


@pytest.mark.parametrize("first", [torch.optim.AdamW, Named])
def test_subclass_that_steps_as_its_parent_has_its_rule(first):
    optimizer_of(first)  # torch wraps `step` of the class whose optimizer is made first
    assert delta_rule(optimizer_of(Named)) is DELTA_RULES[torch.optim.AdamW]


KNOWN = ", ".join(kind.__name__ for kind in DELTA_RULES)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (torch.optim.Adamax, f"Adamax has no prediction rule; .*: {KNOWN}; method=lwp"),
        (partial(torch.optim.Adam, amsgrad=True), r"optimizer\.amsgrad=true .*optimizer\.amsgrad=false"),
        (partial(torch.optim.Adam, maximize=True), r"optimizer\.maximize=true .*optimizer\.maximize=false"),
        (Cautious, "Cautious overrides `step` of AdamW, .*; method=lwp"),
        (Louder, "Louder overrides `step` of Signed"),
        (Mute, "Mute has no prediction rule"),
        (Confused, "Confused.delta_rule is not a pipetrain.DeltaRule"),
    ],
)
def test_optimizer_without_a_rule_that_holds_is_refused(kind, message):
    assert KNOWN == "SGD, Adam, AdamW, NAdam, RMSprop, Adagrad"
    assert_refused(message, delta_rule, optimizer_of(kind))
    assert known_rule(optimizer_of(kind)) is None


def test_optimizer_of_ones_own_is_predicted_by_its_own_rule():
    found = stage_optimizer(Signed)
    gradients = {name: -torch.ones_like(weight) for name, weight in found.parameters.items()}
    found.keep_last_gradients(enabled=True)
    assert found.deltas() == {}
    found.step(gradients)
    assert all(bool((delta == -1).all()) for delta in found.deltas().values())
    assert found.deltas().keys() == gradients.keys()


class Few(Signed):
    delta_rule = DeltaRule(lambda _settings: (), lambda *_given: [])


def test_rule_that_returns_other_numbers_of_tensors_is_told():
    assert_refused(r"Few\.delta_rule: `delta` returned 0 tensors for 2 weights", lambda: stage_optimizer(Few).deltas())
