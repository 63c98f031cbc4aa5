"""Methods with parameter groups, by hand: each weight with the options and the rate of its own group."""

from dataclasses import dataclass
from functools import partial
from itertools import cycle, product

import pytest
import torch
from support import reference
from support.against_reference import CUTS, assert_close, data, model, run_by_hand
from support.methods import ASYNCHRONOUS, fitting
from support.pipelines import batches, half_decay, pipeline
from support.quick_cases import slow_unless
from torch import nn

SCALE = 2.5
BUILDS = {
    "momentum": partial(torch.optim.SGD, lr=1.0, momentum=0.9, weight_decay=0.05, fused=True),
    "adamw": partial(torch.optim.AdamW, lr=1.0, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1, fused=True),
}
OF_BIASES = {"momentum": {"momentum": 0.5}, "adamw": {"betas": [0.7, 0.9]}}


@dataclass
class Grouped:
    """Weights by one rule, and biases by another with the rate times `SCALE`, of parts [W, b, W, b, ...]."""

    of_weights: reference.Optimizer
    of_biases: reference.Optimizer

    def _rules(self):
        return cycle([(self.of_weights, 1.0), (self.of_biases, SCALE)])

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


def in_groups(parameters, **of_biases):
    """torch's parameter groups: weights, and biases with these options."""
    split = [[p for p in parameters.values() if (p.dim() < 2) is vectors] for vectors in (False, True)]
    return [{"params": split[0]}, {"params": split[1], **of_biases}]


def of_biases(kind):
    return {"weight_decay": 0.0, "lr_scale": SCALE, **OF_BIASES[kind]}


def trained(rule, D, N, kind, dtype=torch.float64, **options):
    x, y = data(dtype=dtype)
    options = options or {"groups": partial(in_groups, **of_biases(kind))}
    return pipeline(model(dtype), CUTS[D], rule, N, BUILDS[kind], **options).train(batches(x, y, 8, N), 2)


def plain(parameters):
    return list(parameters.values())


def quick(rule, N, kind):
    transforms = ("gpipe", "pipedream", "pipeoptim", "lwp_stash", "pipemare", "i_timeprest")
    return (N, kind) == (1, "momentum") or ((N, kind) == (4, "adamw") and rule in transforms)


@pytest.mark.parametrize(
    ("rule", "N", "kind"),
    slow_unless(
        quick,
        [
            (rule, N, kind)
            for rule, N, kind in product(["gpipe", *ASYNCHRONOUS], (1, 4), RULES)
            if fitting(rule, 4, N) and not (rule.startswith("spectrain") and kind == "adamw")  # it takes momentum alone
        ],
    ),
)
def test_method_with_parameter_groups_equals_reference(rule, N, kind):
    ours, theirs = trained(rule, 4, N, kind), run_by_hand(rule, 4, N, optimizers=RULES[kind])
    assert_close((ours.losses, ours.state()), theirs, 1e-9)


@pytest.mark.parametrize("kind", RULES)
@pytest.mark.parametrize(("rule", "D"), [("sequential", 1), ("gpipe", 2)])
def test_parameter_groups_have_the_bits_of_a_plain_torch_loop(rule, D, kind):
    ours, net, (x, y) = trained(rule, D, 1, kind, torch.float32), model(torch.float32), data(dtype=torch.float32)
    optimizer = BUILDS[kind](in_groups(dict(net.named_parameters()), weight_decay=0.0, **OF_BIASES[kind]))
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


@pytest.mark.parametrize("rule", ["gpipe", "pipedream_2bw", "pipeoptim", "spectrain", "lwp_stash", "pipemare"])
def test_group_with_the_options_of_the_others_changes_no_bit(rule):
    same = partial(in_groups, weight_decay=0.05, momentum=0.9, lr_scale=1.0)
    ours, theirs = (trained(rule, 4, 4, "momentum", groups=groups) for groups in (same, plain))
    assert ours.losses == theirs.losses
    assert all(torch.equal(value, theirs.state()[name]) for name, value in ours.state().items())
