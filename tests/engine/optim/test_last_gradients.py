"""The gradients that Δ takes are kept where a phase predicts with them, and nowhere else."""

import pytest
import torch
from support.pipelines import batches, pipeline
from torch import nn

from pipetrain.engine.optim.prediction import LAST_GRADIENT

KEEPING = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.0),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.0, momentum=0.9, nesterov=True),
    "nadam": lambda p: torch.optim.NAdam(p),
    "rmsprop": lambda p: torch.optim.RMSprop(p),
    "adagrad": lambda p: torch.optim.Adagrad(p),
}
"""Optimizers whose Δ takes the last gradient."""


def kept_after(rule, build):
    """Whether each stage keeps last gradients after twelve steps."""
    torch.manual_seed(0)
    pipe = pipeline(nn.Sequential(*[nn.Linear(4, 4) for _ in range(2)]), [1], rule, build=build)
    pipe.train(batches(torch.randn(48, 4), torch.arange(48) % 4, 4))
    return [any(LAST_GRADIENT in state for state in stage.optimizer.state().values()) for stage in pipe.stages]


@pytest.mark.parametrize("optimizer", KEEPING)
@pytest.mark.parametrize("rule", ["gpipe", "pipedream", "pipemare", "stale"])
def test_method_that_predicts_nothing_keeps_no_gradient(rule, optimizer):
    assert kept_after(rule, KEEPING[optimizer]) == [False, False]


@pytest.mark.parametrize("optimizer", KEEPING)
def test_pipeoptim_keeps_the_last_gradients(optimizer):
    assert kept_after("pipeoptim", KEEPING[optimizer]) == [True, True]


def test_last_gradients_are_kept_only_for_predicting_phase():
    adagrad = KEEPING["adagrad"]
    assert kept_after([("gpipe", 20), ("pipeoptim", 20)], adagrad) == [True, True]
    assert kept_after([("pipeoptim", 6), ("gpipe", 20)], adagrad) == [False, False]


def test_first_prediction_uses_last_gradient_of_phase_before():
    torch.manual_seed(0)
    net, x, y = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), torch.randn(8, 4), torch.arange(8) % 4
    pipe = pipeline(net, [1], [("gpipe", 1), ("pipeoptim", 1)], build=KEEPING["sgd"], rate=lambda _k: 0.5)
    start = {name: value.clone() for name, value in pipe.state().items()}
    pipe.train(batches(x[:4], y[:4], 4))
    after = pipe.state()
    delta = {name: (start[name] - after[name]) / 0.5 for name in start}
    for stage in pipe.stages:
        for local, found in stage.optimizer.deltas().items():
            torch.testing.assert_close(found, delta[stage.full_names[local]], rtol=1e-4, atol=1e-6)
