"""Methods with parameter groups, by hand: each weight with the options and the rate of its own group."""

import itertools
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from support import reference
from support.against_reference import CUTS, assert_close, data, model, run_by_hand
from support.methods import ASYNCHRONOUS, fitting
from support.pipelines import batches, difference, half_decay, pipeline
from torch import nn

from pipetrain.runner.config.optimizer import OptimizerSettings
from pipetrain.runner.training.builders.optimizer import build_torch_optimizer, parameter_groups

SCALE = 2.5
SETTINGS = {
    "momentum": {"_target_": "torch.optim.SGD", "momentum": 0.9, "weight_decay": 0.05},
    "adamw": {"_target_": "torch.optim.AdamW", "betas": [0.8, 0.95], "eps": 1e-6, "weight_decay": 0.1},
}
OF_BIASES = {"momentum": {"momentum": 0.5}, "adamw": {"betas": [0.7, 0.9]}}


@dataclass
class Grouped:
    """Weights by one rule, and biases by another with the rate times `SCALE`, of parts [W, b, W, b, ...]."""

    of_weights: reference.Optimizer
    of_biases: reference.Optimizer

    def _rules(self):
        return itertools.cycle([(self.of_weights, 1.0), (self.of_biases, SCALE)])

    def start(self, weights):
        return [rule.start([w]) for (rule, _), w in zip(self._rules(), weights, strict=False)]

    def step(self, weights, gradients, states, lr):
        each = zip(self._rules(), weights, gradients, states, strict=False)
        made = [rule.step([w], [g], state, scale * lr) for (rule, scale), w, g, state in each]
        return [w for (w,), _ in made], [state for _, state in made]

    def delta(self, states):
        return [scale * rule.delta(state)[0] for (rule, scale), state in zip(self._rules(), states, strict=False)]


RULES = {
    "momentum": Grouped(reference.Optimizer("momentum", decay=0.05), reference.Optimizer("momentum", mu=0.5)),
    "adamw": Grouped(
        reference.Optimizer("adamw", decay=0.1), reference.Optimizer("adamw", beta1=0.7, beta2=0.9)
    ),
}  # fmt: skip


def settings_of(kind, **changes):
    groups = [{"max_dims": 1, "weight_decay": 0.0, "lr_scale": SCALE, **OF_BIASES[kind]}]
    return OptimizerSettings.of({**SETTINGS[kind], "lr": 1.0, "clip_norm": None, "groups": groups, **changes})


def trained(rule, D, N, kind, dtype=torch.float64, **changes):
    settings, (x, y) = settings_of(kind, **changes), data(dtype=dtype)
    build, groups = partial(build_torch_optimizer, settings), partial(parameter_groups, settings)
    return pipeline(model(dtype), CUTS[D], rule, N, build, groups=groups).train(batches(x, y, 8, N), 2)


@pytest.mark.parametrize("kind", RULES)
@pytest.mark.parametrize("N", [1, 4])
@pytest.mark.parametrize("rule", ["gpipe", *ASYNCHRONOUS])
def test_method_with_parameter_groups_equals_reference(rule, N, kind):
    if not fitting(rule, 4, N) or (kind == "adamw" and rule.startswith("spectrain")):  # which takes momentum alone
        return
    ours, theirs = trained(rule, 4, N, kind), run_by_hand(rule, 4, N, optimizers=RULES[kind])
    assert_close((ours.losses, ours.state()), theirs, 1e-9)
    assert difference(trained(rule, 4, N, kind, groups=None).state(), theirs[1]) > 1e-3


@pytest.mark.parametrize("kind", RULES)
@pytest.mark.parametrize(("rule", "D"), [("sequential", 1), ("gpipe", 2)])
def test_parameter_groups_have_the_bits_of_a_plain_torch_loop(rule, D, kind):
    ours, net, (x, y) = trained(rule, D, 1, kind, torch.float32), model(torch.float32), data(dtype=torch.float32)
    decay = [p for p in net.parameters() if p.dim() >= 2]
    rest = [p for p in net.parameters() if p.dim() < 2]
    options = {name: value for name, value in SETTINGS[kind].items() if name != "_target_"}
    optimizer = {"momentum": torch.optim.SGD, "adamw": torch.optim.AdamW}[kind](
        [{"params": decay}, {"params": rest, "weight_decay": 0.0, **OF_BIASES[kind]}], lr=1.0, fused=True, **options
    )
    losses = []
    for _ in range(2):
        for xs, ys in zip(x.split(8), y.split(8), strict=True):
            for group, scale in zip(optimizer.param_groups, (1.0, SCALE), strict=True):
                group["lr"] = half_decay(len(losses)) * scale
            loss = nn.functional.cross_entropy(net(xs), ys)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert ours.losses == losses
    assert all(torch.equal(ours.state()[name], value) for name, value in net.state_dict().items())


@pytest.mark.parametrize("rule", ["gpipe", *ASYNCHRONOUS])
def test_group_with_the_options_of_the_others_changes_no_bit(rule):
    same = [{"match": "*.bias", "weight_decay": 0.05, "momentum": 0.9}, {"match": "2.*", "lr_scale": 1.0}]
    ours, theirs = (trained(rule, 4, 4, "momentum", groups=groups) for groups in (same, None))
    assert ours.losses == theirs.losses
    assert all(torch.equal(value, theirs.state()[name]) for name, value in ours.state().items())
