"""Learning-rate schedules, each equal to torch's own scheduler step by step."""

import pytest
import torch
from torch.optim import lr_scheduler

from pipetrain.zoo.optim.lr_schedules import Constant, Cosine, Inv, InverseSqrt, MultiStep, Polynomial, Step

EPOCHS, STEPS = 12, 5  # of an epoch
TOTAL = EPOCHS * STEPS


def rates_of_torch(make, count):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    scheduler = make(optimizer)
    rates = []
    for _ in range(count):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


PAIRS = [
    (lambda unit, _total: Constant(unit=unit), lambda o, _total: lr_scheduler.ConstantLR(o, factor=1.0)),
    (
        lambda unit, _total: MultiStep(unit=unit, milestones=[3, 7, 9], gamma=0.2),
        lambda o, _total: lr_scheduler.MultiStepLR(o, [3, 7, 9], gamma=0.2),
    ),
    (lambda unit, _total: Step(unit=unit, size=4, gamma=0.5), lambda o, _total: lr_scheduler.StepLR(o, 4, gamma=0.5)),
    (lambda unit, _total: Polynomial(unit=unit), lambda o, total: lr_scheduler.PolynomialLR(o, total)),
    (
        lambda unit, _total: Polynomial(unit=unit, power=2.5),
        lambda o, total: lr_scheduler.PolynomialLR(o, total, power=2.5),
    ),
    (
        lambda unit, _total: Polynomial(unit=unit, power=2.0, total=6),
        lambda o, _total: lr_scheduler.PolynomialLR(o, 6, power=2.0),
    ),
    (lambda unit, _total: Cosine(unit=unit), lambda o, total: lr_scheduler.CosineAnnealingLR(o, total)),
    (
        lambda unit, _total: Cosine(unit=unit, minimum=0.1),
        lambda o, total: lr_scheduler.CosineAnnealingLR(o, total, eta_min=0.1),
    ),
    (
        lambda unit, _total: Inv(unit=unit, gamma=0.3, power=0.75),
        lambda o, _total: lr_scheduler.LambdaLR(o, lambda position: (1 + 0.3 * position) ** -0.75),
    ),
]
NAMES = ["constant", "multistep", "step", "linear", "polynomial", "polynomial total", "cosine", "cosine minimum", "inv"]


@pytest.mark.parametrize(("unit", "count", "repeats"), [("step", TOTAL, 1), ("epoch", EPOCHS, STEPS)])
@pytest.mark.parametrize(("ours", "theirs"), PAIRS, ids=NAMES)
def test_schedule_in_steps_or_epochs_gives_the_rates_of_torchs_scheduler(ours, theirs, unit, count, repeats):
    schedule = ours(unit, count)
    found = [schedule.factor(k, STEPS, TOTAL) for k in range(TOTAL)]
    wanted = [rate for rate in rates_of_torch(lambda o: theirs(o, count), count) for _ in range(repeats)]
    assert found == pytest.approx(wanted, rel=1e-9, abs=1e-12)


def test_schedules_count_epochs_by_default():
    assert Step(size=1, gamma=0.5).factor(STEPS, STEPS, TOTAL) == 0.5


def test_schedule_counts_an_unfinished_last_epoch_as_one():
    # 12 steps of epochs of 5: three epochs, of which the last is short
    assert [Polynomial().factor(k, 5, 12) for k in (0, 4, 5, 10, 11)] == pytest.approx([1, 1, 2 / 3, 1 / 3, 1 / 3])


@pytest.mark.parametrize("schedule", [Polynomial(unit="step", total=10), Cosine(unit="step", total=10, minimum=0.25)])
def test_decay_stays_where_it_ended_past_its_total(schedule):
    end = schedule.factor(10, 1, 30)
    assert [schedule.factor(k, 1, 30) for k in (11, 29)] == [end, end]
    assert end == pytest.approx(0.25 if isinstance(schedule, Cosine) else 0.0)


def test_warm_up_rises_linearly_and_multiplies_the_schedule():
    schedule = Constant(unit="step", warmup=4)
    assert [schedule.factor(k, 1, 10) for k in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    both = MultiStep(unit="step", warmup=4, milestones=[2])
    assert [both.factor(k, 1, 10) for k in range(5)] == pytest.approx([0.25, 0.5, 0.075, 0.1, 0.1])


def test_warm_up_equals_torchs_linear_scheduler():
    schedule = Constant(unit="step", warmup=8)
    wanted = rates_of_torch(lambda o: lr_scheduler.LinearLR(o, start_factor=1 / 8, total_iters=7), 12)
    assert [schedule.factor(k, 1, 12) for k in range(12)] == pytest.approx(wanted)


def test_epoch_warm_up_rises_every_step_and_may_be_fractional():
    assert [Constant(warmup=2).factor(k, 3, 30) for k in range(7)] == pytest.approx(
        [1 / 6, 2 / 6, 0.5, 4 / 6, 5 / 6, 1, 1]
    )
    assert [Constant(warmup=0.5).factor(k, 4, 30) for k in range(3)] == [0.5, 1.0, 1.0]


@pytest.mark.parametrize("warmup", [1, 7])
def test_inverse_sqrt_is_transformer_schedule_peaking_at_lr(warmup):
    def vaswani(step):
        return min(step**-0.5, step * warmup**-1.5)

    schedule = InverseSqrt(warmup=warmup)
    found = [schedule.factor(k, STEPS, TOTAL) for k in range(TOTAL)]
    assert found == pytest.approx([vaswani(k + 1) / vaswani(warmup) for k in range(TOTAL)])


def test_epoch_inverse_sqrt_warms_up_by_step_and_decays_by_epoch():
    schedule = InverseSqrt(unit="epoch", warmup=2)
    found = [schedule.factor(k, 2, 20) for k in range(10)]
    assert found == pytest.approx([0.25, 0.5, 0.75, 1.0, *[(2 / 3) ** 0.5] * 2, *[0.5**0.5] * 2, *[0.4**0.5] * 2])


@pytest.mark.parametrize("warmup", [0.5, 1, 1.5, 2])
def test_epoch_inverse_sqrt_reaches_the_rate_after_any_warm_up(warmup):
    schedule = InverseSqrt(unit="epoch", warmup=warmup)
    assert max(schedule.factor(k, 4, 40) for k in range(40)) == pytest.approx(1.0)


def test_inherent_warm_up_may_be_longer_than_the_run():
    InverseSqrt().check(STEPS, 20)
    assert InverseSqrt().factor(19, STEPS, 20) == 20 / 4000
