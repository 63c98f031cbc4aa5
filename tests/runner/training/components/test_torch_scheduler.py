"""torch's schedulers as functions of the step, against torch's own stepping."""

import warnings

import pytest
import torch
from support.refusals import assert_refused
from torch import nn
from torch.optim import SGD, lr_scheduler

from pipetrain.runner.training.components.learning_rate import TorchScheduler


def made(make, **options):
    return TorchScheduler(make=make, lr=0.1, name="lr_schedule._target_=it", **options)


@pytest.mark.parametrize(
    "make",
    [
        lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, T_max=7, eta_min=0.01),
        lambda optimizer: lr_scheduler.ExponentialLR(optimizer, gamma=0.9),
        lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=3),
        lambda optimizer: lr_scheduler.OneCycleLR(optimizer, max_lr=0.5, total_steps=13, cycle_momentum=False),
        lambda optimizer: lr_scheduler.LinearLR(optimizer, total_iters=5),
    ],
    ids=["cosine", "exponential", "restarts", "one_cycle", "linear"],
)
def test_rates_are_torchs_in_whatever_order_they_are_asked_for(make):
    optimizer = SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    scheduler, rates = make(optimizer), []
    for _ in range(12):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            scheduler.step()
    steps = made(make, unit="step")
    for step in (len(rates) - 1, 0, *range(len(rates))):
        assert 0.1 * steps.factor(step, 4, 12) == pytest.approx(rates[step], rel=1e-14)
    epochs = made(make, unit="epoch", warmup=1)
    assert 0.1 * epochs.factor(9, 4, 12) == pytest.approx(rates[2], rel=1e-14)
    assert epochs.factor(0, 4, 12) == 0.25 * steps.factor(0, 4, 12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda optimizer: lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=3), "cycle_momentum=false"),
        (
            lambda optimizer: lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=3, cycle_momentum=False),
            "ends before the run, which has 8 steps",
        ),
        (lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer), "waits for the loss"),
        (lambda optimizer: lr_scheduler.ExponentialLR(optimizer, gamma=-1), "gives the rate -0.1 in step 1"),
        (lambda optimizer: optimizer, "returned SGD, not a scheduler"),
    ],
)
def test_scheduler_that_cannot_work_is_refused(make, message):
    assert_refused(message, lambda: made(make, unit="step").check(4, 8))
