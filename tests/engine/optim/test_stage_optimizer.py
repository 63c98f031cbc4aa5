"""A stage's optimizer: torch's own steps, its state and Δ."""

import pytest
import torch
from support.refusals import assert_refused
from torch import nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.optim.prediction import DELTA_RULES, DeltaRule
from pipetrain.engine.optim.stage_optimizer import StageOptimizer

BUILDS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=1.0),
    "momentum": lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.9, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, lr=1.0),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1.0, weight_decay=0.1),
    "nesterov": lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.9, weight_decay=0.01, nesterov=True),
    "nadam": lambda p: torch.optim.NAdam(p, lr=1.0, weight_decay=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1.0, weight_decay=0.01),
    "rmsprop of all": lambda p: torch.optim.RMSprop(p, lr=1.0, momentum=0.9, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1.0, lr_decay=0.1, weight_decay=0.01),
}


def rate(k):
    return 0.1 / (k + 1)


def predicting(build, named, updates=0, groups=None):
    """An optimizer that keeps what its prediction needs."""
    optimizer = StageOptimizer(build, named, rate, groups)
    optimizer.updates = updates
    optimizer.keep_last_gradients(enabled=True)
    return optimizer


def parameters():
    torch.manual_seed(0)
    return {"weight": nn.Parameter(torch.randn(3, 2)), "bias": nn.Parameter(torch.randn(3))}


def gradients(step):
    torch.manual_seed(100 + step)
    return {"weight": torch.randn(3, 2), "bias": torch.randn(3)}


def run(optimizer, steps, first=0):
    for step in range(first, first + steps):
        optimizer.step(gradients(step))


def grouped(named, **of_bias):
    return [{"params": [named["weight"]]}, {"params": [named["bias"]], **of_bias}]


@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.3, "lr_scale": 0.5}], ids=["alone", "groups"])
@pytest.mark.parametrize("kind", BUILDS)
def test_optimizer_steps_equal_torch_at_each_update_and_group_rate(kind, options):
    ours, plain = parameters(), parameters()
    run(StageOptimizer(BUILDS[kind], ours, rate, grouped(ours, **options) if options else None), 5)
    optimizer = BUILDS[kind](grouped(plain, **options) if options else list(plain.values()))
    for step in range(5):
        for group in optimizer.param_groups:
            group["lr"] = rate(step) * group.get("lr_scale", 1.0)
        for name, gradient in gradients(step).items():
            plain[name].grad = gradient
        optimizer.step()
    assert all(torch.equal(ours[name], plain[name]) for name in plain)


@pytest.mark.parametrize("kind", BUILDS)
def test_delta_of_group_is_that_of_optimizer_with_its_options(kind):
    options, named = {"weight_decay": 0.3}, parameters()
    together = predicting(BUILDS[kind], named, groups=grouped(named, **options))
    for name, chosen in (("weight", {}), ("bias", options)):
        alone = {name: parameters()[name]}
        apart = predicting(BUILDS[kind], alone, groups=[{"params": list(alone.values()), **chosen}])
        for step in range(3):
            apart.step({name: gradients(step)[name]})
        if name == "weight":
            run(together, 3)
        assert torch.equal(together.deltas()[name], apart.deltas()[name])


@pytest.mark.parametrize("kind", BUILDS)
def test_parameter_without_a_gradient_is_skipped(kind):
    ours = parameters()
    optimizer = predicting(BUILDS[kind], ours)
    run(optimizer, 2)
    before = {name: value.detach().clone() for name, value in ours.items()}
    state = {key: value.clone() for key, value in optimizer.state()["bias"].items()}
    optimizer.step({"weight": torch.ones(3, 2)})
    assert torch.equal(ours["bias"], before["bias"])
    assert not torch.equal(ours["weight"], before["weight"])
    assert all(torch.equal(optimizer.state()["bias"][key], value) for key, value in state.items())


def test_updates_count_even_if_there_is_nothing_to_optimize():
    optimizer = StageOptimizer(BUILDS["momentum"], {}, rate)
    optimizer.step({})
    assert (optimizer.updates, optimizer.next_learning_rate) == (1, rate(1))
    assert optimizer.deltas() == {}
    assert optimizer.state() == {}


def test_gradients_are_freed_after_the_step():
    ours = parameters()
    run(StageOptimizer(BUILDS["adam"], ours, rate), 1)
    assert all(value.grad is None for value in ours.values())


@pytest.mark.parametrize("kind", BUILDS)
def test_loaded_optimizer_state_continues_with_equal_bits(kind):
    whole, part = parameters(), parameters()
    run(StageOptimizer(BUILDS[kind], whole, rate), 6)
    first = predicting(BUILDS[kind], part)
    run(first, 3)
    state = {n: {k: v.clone() for k, v in values.items()} for n, values in first.state().items()}
    assert all(isinstance(v, torch.Tensor) for values in state.values() for v in values.values())
    second = predicting(BUILDS[kind], part, updates=3)
    second.load_state(state)
    for name, delta in first.deltas().items():
        assert torch.equal(second.deltas()[name], delta)
    run(second, 3, first=3)
    assert all(torch.equal(whole[name], part[name]) for name in whole)


@pytest.mark.parametrize("kind", ["adam", "nadam", "adagrad"])
def test_delta_reads_no_device_update_count(kind):
    optimizer = predicting(BUILDS[kind], parameters())
    run(optimizer, 1)
    optimizer.step({"weight": gradients(1)["weight"]})  # counts differ
    expected = optimizer.deltas()
    for state in optimizer.optimizer.state.values():
        state["step"] = state["step"].to("meta")
    found = optimizer.deltas()
    assert list(found) == list(expected) == ["weight", "bias"]
    assert all(torch.equal(found[name], expected[name]) for name in expected)


FUSED = {
    "sgd": (SGD, {"weight_decay": 0.01}),
    "momentum": (SGD, {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.01}),
    "nesterov": (SGD, {"momentum": 0.9, "nesterov": True}),
    "adam": (Adam, {"weight_decay": 0.01}),
    "adamw": (AdamW, {"weight_decay": 0.1}),
    "adagrad": (Adagrad, {"lr_decay": 0.1, "weight_decay": 0.01}),
}
SHAPES = {"weight": (37, 29), "bias": (29,)}


def parameters_on(dtype=torch.float32, device="cpu"):
    torch.manual_seed(0)
    return {name: nn.Parameter(torch.randn(shape, dtype=dtype, device=device)) for name, shape in SHAPES.items()}


def gradients_of_all(step, names=SHAPES):
    torch.manual_seed(100 + step)
    return {name: torch.randn(SHAPES[name]) for name in names}


def steps(build, each, of_bias=None):
    """The weights after a step for the gradients of each of these names; `of_bias`: options of its own group."""
    ours = parameters_on()
    groups = None if of_bias is None else grouped(ours, **of_bias)
    optimizer = StageOptimizer(build, ours, lambda k: 0.1 / (k + 1), groups)
    for step, names in enumerate(each):
        optimizer.step(gradients_of_all(step, names))
    return ours


def assert_close(ours, plain):
    for name in SHAPES:
        torch.testing.assert_close(ours[name], plain[name], rtol=2e-6, atol=2e-7)


@pytest.mark.parametrize("shape", [(1,), (7,)])
def test_fused_step_gets_no_state_of_another_size(shape):
    weight = nn.Parameter(torch.zeros(5))
    optimizer = StageOptimizer(lambda p: SGD(p, lr=0.1, momentum=0.9, fused=True), {"w": weight}, lambda _: 0.1)
    optimizer.load_state({"w": {"momentum_buffer": torch.zeros(5), "of_another_optimizer": torch.zeros(shape)}})
    with pytest.raises(ConfigError, match=r"momentum_buffer of w is of shape"):
        optimizer.load_state({"w": {"momentum_buffer": torch.zeros(shape)}})


LATE = [["weight"], ["weight"], ["weight", "bias"], ["bias"], ["weight", "bias"]]


@pytest.mark.parametrize("each", [[list(SHAPES)] * 6, LATE], ids=["all", "late first gradient"])
@pytest.mark.parametrize("kind", FUSED)
def test_fused_steps_are_the_plain_ones_to_rounding(kind, each):
    optimizer, options = FUSED[kind]
    fused, plain = (steps(lambda p, f=f: optimizer(p, lr=0.1, fused=f, **options), each) for f in (True, False))
    assert_close(fused, plain)


@pytest.mark.parametrize(("of_all", "of_bias"), [(0.9, 0.0), (0.0, 0.9), (0.9, 0.5)])
def test_fused_groups_with_other_momentum_accept_late_gradients(of_all, of_bias):
    fused, plain = (
        steps(lambda p, f=f: SGD(p, lr=0.1, momentum=of_all, fused=f), LATE, {"momentum": of_bias})
        for f in (True, False)
    )
    assert_close(fused, plain)


class OwnState(Optimizer):
    """Steps that depend on numbers in the state and in the groups, as those of many libraries do."""

    def __init__(self, params, lr=0.1, *, k=0, list_too=False, history=None, key="all steps"):
        super().__init__(params, {"lr": lr, "k": k, "list_too": list_too, "history": history})
        self.key = key

    @torch.no_grad()
    def step(self):
        number, tensor = self.state.get("number", 0), self.state.get(self.key, torch.zeros(1))
        self.state["number"], self.state[self.key] = number + 1, tensor + 0.5
        for group in self.param_groups:
            group["k"] += 1
            if group["history"] is not None:
                group["history"].append(self.state["number"])
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self.state[parameter]
                    state["step"] = state.get("step", 0) + 1
                    state["mean"] = state.get("mean", 0.0) * 0.3 + float(parameter.grad.mean()) / 3
                    if group["list_too"]:
                        state["all"] = [parameter.grad]
                    bias = 1 - 0.9 ** state["step"]
                    change = group["lr"] / group["k"] / bias * (parameter.grad + state["mean"])
                    parameter.sub_(change * (number + tensor))


@pytest.mark.parametrize("zero", [int, lambda: torch.zeros(())])
def test_numbers_in_state_and_groups_continue_with_equal_bits(zero):
    def build(groups):
        return OwnState(groups, k=zero())

    whole, half = parameters(), parameters()
    run(StageOptimizer(build, whole, rate), 6)
    first = StageOptimizer(build, half, rate)
    run(first, 3)
    again = StageOptimizer(build, half, rate)
    again.load_state({name: {key: t.clone() for key, t in state.items()} for name, state in first.state().items()})
    again.updates = 3
    for step in range(3, 6):
        again.step(gradients(step))
    assert all(torch.equal(whole[name], half[name]) for name in whole)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"list_too": True}, "a list as 'all'"),
        ({"history": []}, "a list as 'history'"),
        ({"key": ("all", 1)}, "state under a tuple"),
    ],
)
def test_state_that_checkpoints_cannot_hold_is_refused(state, message):
    optimizer = StageOptimizer(lambda groups: OwnState(groups, **state), parameters(), rate)
    run(optimizer, 1)
    assert_refused(f"OwnState keeps {message}", optimizer.state)


def test_state_of_no_weight_stays_when_last_gradients_are_dropped():
    optimizer = StageOptimizer(OwnState, parameters(), rate)
    run(optimizer, 2)
    optimizer.keep_last_gradients(enabled=False)
    assert optimizer.optimizer.state["number"] == 2


class WithoutEmptyStates(Optimizer):
    """Momentum whose first step of a weight finds no state of it, not even an empty one."""

    delta_rule = DELTA_RULES[SGD]

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr, "momentum": 0.9, "nesterov": False, "k": 0})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            group["k"] += 1
            for parameter in group["params"]:
                if parameter.grad is not None:
                    if parameter not in self.state:
                        self.state[parameter] = {"momentum_buffer": torch.zeros_like(parameter)}
                    buffer = self.state[parameter]["momentum_buffer"]
                    parameter.sub_(buffer.mul_(group["momentum"]).add_(parameter.grad), alpha=group["lr"])


def test_weight_without_updates_gets_no_empty_state():
    optimizer = StageOptimizer(WithoutEmptyStates, parameters(), rate, error_feedback=0.1)
    optimizer.keep_last_gradients(enabled=False)
    optimizer.step({"weight": gradients(0)["weight"]})
    assert optimizer.deltas().keys() == {"weight"}
    again = StageOptimizer(WithoutEmptyStates, parameters(), rate)
    again.load_state(optimizer.state())
    for each in (optimizer, again):
        each.step(gradients(1))


def test_coming_rates_are_those_of_each_group():
    named = parameters()
    groups = [{"params": [named["weight"]]}, {"params": [named["bias"]], "lr_scale": 3.0}]
    optimizer = StageOptimizer(BUILDS["momentum"], named, rate, groups)
    optimizer.updates = 2
    coming = [rate(2), rate(3)]
    assert optimizer.coming_learning_rates(2) == {"weight": coming, "bias": [3 * each for each in coming]}


class Averaged(Optimizer):
    """Steps by the mean of all gradients, and predicts with it; how many there were it does not keep."""

    delta_rule = DeltaRule(
        lambda _settings: ("sum",), lambda states, _settings, updates: [state["sum"] / updates for state in states]
    )

    def __init__(self, params):
        super().__init__(params, {"lr": 1.0})

    def step(self):
        for weight in self.param_groups[0]["params"]:
            if weight.grad is not None:
                total = self.state[weight].setdefault("sum", torch.zeros_like(weight))
                total.add_(weight.grad)


def test_own_rule_is_given_the_number_of_updates_after_a_resume():
    first, again = (predicting(Averaged, parameters()) for _ in range(2))
    run(first, 3)
    first.step({"bias": gradients(3)["bias"]})
    again.load_state(first.state())
    for name, delta in first.deltas().items():
        assert torch.equal(again.deltas()[name], delta)
    mean = sum(gradients(step)["weight"] for step in range(3)) / 3
    torch.testing.assert_close(again.deltas()["weight"], mean)
