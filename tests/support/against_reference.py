"""One small classifier trained twice: by a pipeline of pipetrain, and by the formulas of `support.reference`."""

from functools import cache

import pytest
import torch
from support import reference, reference_optimizers
from support.pipelines import batches, difference, half_decay, pipeline
from torch import nn

WIDTH, CLASSES, SAMPLES, BATCH, EPOCHS = 5, 3, 45, 8, 2  # minibatches of 8, 8, 8, 8, 8 and 5 samples
CUTS = {
    1: [],
    2: [4],
    3: [2, 6],
    4: [2, 4, 6],
    5: [2, 3, 4, 6],
    6: [1, 2, 3, 4, 6],
}  # of layers Linear tanh Linear tanh Linear tanh Linear
OPTIMIZERS = {
    "momentum": reference.Optimizer("momentum", decay=0.01),
    "sgd": reference.Optimizer("sgd"),
    "adam": reference.Optimizer("adam", decay=0.01),
    "adamw": reference.Optimizer("adamw", decay=0.1),
}
REPEATING = {
    "nesterov": reference_optimizers.Nesterov(decay=0.01),
    "rmsprop": reference_optimizers.RMSprop(decay=0.01),
    "rmsprop momentum": reference_optimizers.RMSprop(mu=0.5),
    "rmsprop centered": reference_optimizers.RMSprop(centered=True),
    "adagrad": reference_optimizers.Adagrad(decay=0.01),
    "nadam": reference_optimizers.NAdam(decay=0.01),
}
OPTIMIZERS |= REPEATING


def model(dtype=torch.float64):
    torch.manual_seed(1)
    layers = []
    for _ in range(3):
        layers += [nn.Linear(WIDTH, WIDTH), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES)).to(dtype)


def data(samples=SAMPLES, dtype=torch.float64):
    torch.manual_seed(2)
    return torch.randn(samples, WIDTH, dtype=dtype), torch.randint(0, CLASSES, (samples,))


def rate_of(kind):
    scale = 1.0 if kind in ("sgd", "momentum", "nesterov") else 0.3
    return lambda k: scale * half_decay(k)


def run_pipeline(rule, D, N, kind="momentum", recompute=None, build=None, rate=None, **options):
    """(losses, weights); `options` are further ones of `pipeline`."""
    x, y = data()
    build = build or OPTIMIZERS[kind].torch_optimizer
    pipe = pipeline(model(), CUTS[D], rule, N, build, rate or rate_of(kind), recompute=recompute, **options)
    pipe.train(batches(x, y, BATCH, N), EPOCHS)
    return pipe.losses, pipe.state()


@cache
def run_plain(rule, D, N, kind="momentum"):
    """(losses, weights) of a pipeline without further options, which several tests compare with."""
    return run_pipeline(rule, D, N, kind)


def run_by_hand(rule, D, N, kind="momentum", recompute=None, tau=None, optimizers=None):
    """(losses, weights); `optimizers`, one or a list with one for each stage, replace that of `kind`."""
    run = reference.Run.of(parts(D), optimizers or OPTIMIZERS[kind], rate_of(kind), N, recompute, tau)
    run.phase(rule, [minibatches()] * EPOCHS)
    return outcome(run)


def parts(D):
    """The weights of each stage."""
    weights = [[p.detach().clone() for p in layer.parameters()] for layer in model()]
    bounds = zip([0, *CUTS[D]], [*CUTS[D], len(weights)], strict=True)
    return [[w for layer in weights[a:b] for w in layer] for a, b in bounds]


def minibatches():
    x, y = data()
    return list(zip(x.split(BATCH), y.split(BATCH), strict=True))


def outcome(run):
    """(losses, weights) of the reference."""
    names = [name for name, _ in model().named_parameters()]
    return run.losses, dict(zip(names, [w for part in run.newest for w in part], strict=True))


def assert_close(ours, theirs, within=1e-11):
    """Compares (losses, weights); the pipeline keeps a step's loss in float32."""
    assert ours[0] == pytest.approx(theirs[0], rel=1e-6)
    assert difference(ours[1], theirs[1]) < within
