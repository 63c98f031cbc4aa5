"""Every method's losses and final weights against the papers' formulas written out by hand."""

import by_hand
import pytest
import torch
from harness import ASYNCHRONOUS, RULES, SYNCHRONOUS, batches, difference, half_decay, pipeline
from torch import nn

WIDTH, CLASSES, SAMPLES, BATCH, EPOCHS = 5, 3, 45, 8, 2  # minibatches of 8, 8, 8, 8, 8 and 5 samples
CUTS = {1: [], 2: [4], 3: [2, 6], 4: [2, 4, 6]}  # of layers Linear tanh Linear tanh Linear tanh Linear
OPTIMIZERS = {
    "momentum": by_hand.Optimizer("momentum", decay=0.01),
    "sgd": by_hand.Optimizer("sgd"),
    "adam": by_hand.Optimizer("adam", decay=0.01),
    "adamw": by_hand.Optimizer("adamw", decay=0.1),
}


def model():
    torch.manual_seed(1)
    layers = []
    for _ in range(3):
        layers += [nn.Linear(WIDTH, WIDTH), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES)).double()


def data():
    torch.manual_seed(2)
    return torch.randn(SAMPLES, WIDTH, dtype=torch.float64), torch.randint(0, CLASSES, (SAMPLES,))


def rate_of(kind):
    scale = 0.3 if kind in ("adam", "adamw") else 1.0
    return lambda k: scale * half_decay(k)


def run_pipeline(rule, D, N, kind, epochs=EPOCHS):
    x, y = data()
    pipe = pipeline(model(), CUTS[D], rule, N, OPTIMIZERS[kind].torch_optimizer, rate_of(kind))
    pipe.train(batches(x, y, BATCH, N), epochs)
    return pipe.losses, pipe.state()


def run_by_hand(rule, D, N, kind, epochs=EPOCHS):
    x, y = data()
    weights = [[p.detach().clone() for p in layer.parameters()] for layer in model()]
    bounds = zip([0, *CUTS[D]], [*CUTS[D], len(weights)], strict=True)
    parts = [[w for layer in weights[a:b] for w in layer] for a, b in bounds]
    minibatches = list(zip(x.split(BATCH), y.split(BATCH), strict=True))
    losses = by_hand.train(rule, parts, OPTIMIZERS[kind], rate_of(kind), [minibatches] * epochs, N)
    names = [name for name, _ in model().named_parameters()]
    return losses, dict(zip(names, [w for part in parts for w in part], strict=True))


@pytest.mark.parametrize("N", [1, 2, 4])
@pytest.mark.parametrize("D", [1, 2, 3, 4])
@pytest.mark.parametrize("rule", RULES)
def test_momentum_and_weight_decay_under_every_method(rule, D, N):
    ours, theirs = run_pipeline(rule, D, N, "momentum"), run_by_hand(rule, D, N, "momentum")
    assert ours[0] == pytest.approx(theirs[0], rel=1e-6)  # a step's loss is kept in float32
    assert difference(ours[1], theirs[1]) < 1e-11


@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize(("D", "N"), [(2, 1), (3, 2), (4, 1), (4, 4)])
@pytest.mark.parametrize("rule", ["gpipe", *ASYNCHRONOUS])
def test_other_optimizers_under_every_method(rule, D, N, kind):
    ours, theirs = run_pipeline(rule, D, N, kind), run_by_hand(rule, D, N, kind)
    assert ours[0] == pytest.approx(theirs[0], rel=1e-6)
    assert difference(ours[1], theirs[1]) < 1e-9


def test_the_reference_tells_all_asynchronous_methods_apart():
    final = {rule: run_by_hand(rule, 4, 1, "momentum")[1] for rule in ("gpipe", *ASYNCHRONOUS)}
    pairs = [(a, b) for a in final for b in final if a < b]
    assert min(difference(final[a], final[b]) for a, b in pairs) > 1e-4


@pytest.mark.parametrize("rule", RULES)
def test_the_reference_of_one_stage_is_plain_torch_training(rule):
    net, (x, y) = model(), data()
    optimizer = OPTIMIZERS["momentum"].torch_optimizer(list(net.parameters()))
    losses = []
    for _ in range(EPOCHS):
        for xs, ys in zip(x.split(BATCH), y.split(BATCH), strict=True):
            optimizer.param_groups[0]["lr"] = half_decay(len(losses))
            loss = nn.functional.cross_entropy(net(xs), ys)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    by_formula = run_by_hand(rule, 1, 1, "momentum")
    assert by_formula[0] == pytest.approx(losses, rel=1e-12)
    assert difference(by_formula[1], dict(net.state_dict())) < 1e-12


@pytest.mark.parametrize("N", [2, 4])
@pytest.mark.parametrize("D", [2, 4])
@pytest.mark.parametrize("rule", SYNCHRONOUS)
def test_synchronous_methods_equal_one_stage_whatever_d_and_n(rule, D, N):
    _, plain = run_by_hand("sequential", 1, 1, "momentum")
    assert difference(run_pipeline(rule, D, N, "momentum")[1], plain) < 1e-11
