"""What each method declares, which optimizers it refuses, and how its configuration is found."""

import pytest
import torch
from harness import ASYNCHRONOUS, RULES, SYNCHRONOUS
from torch import nn

from pipetrain.errors import ConfigError
from pipetrain.methods import Method
from pipetrain.methods.pipedream import PipeDream
from pipetrain.methods.pipeoptim import PipeOptim
from pipetrain.schedules.base import Family
from pipetrain.schedules.operation import backward, forward
from pipetrain.schedules.readings import Moment, Read
from pipetrain.weights import Predicted

MOMENT = Moment(
    stage=1, stages=4, microbatches=1, operation=forward(4), newest=2, entry=1, updates_until_backward=2
)  # fmt: skip
LATER = Moment(
    stage=1, stages=4, microbatches=1, operation=backward(4), newest=4, entry=1, updates_until_backward=2
)  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "in_forward", "in_backward"),
    [
        ("naive_async", Read(2), Read(4)),
        ("pipedream", Read(2), Read(2)),
        ("vertical_sync", Read(1), Read(1)),
        ("pipeoptim", Read(2, Predicted(2)), Read(4)),
    ],
)
def test_what_a_method_reads_at_one_moment(rule, in_forward, in_backward):
    method = RULES[rule][0]
    read = method.forward(MOMENT)
    assert read == in_forward
    assert method.backward(LATER, read) == in_backward


def test_readings_print_the_version_and_the_steps_predicted():
    assert [str(Read(1)), str(Read(1, Predicted(3)))] == ["v1", "v1+3"]


@pytest.mark.parametrize("rule", RULES)
def test_a_method_and_its_default_schedule_are_of_one_family(rule):
    method, schedule = RULES[rule]
    assert isinstance(method, Method)
    assert method.family is schedule.family
    assert method.family is (Family.SYNCHRONOUS if rule in SYNCHRONOUS else Family.CONTINUOUS)


def test_names_are_those_of_the_configuration():
    assert [RULES[rule][0].name for rule in ("naive_async", "pipedream", "pipeoptim")] == [
        "naive_async",
        "pipedream",
        "pipeoptim",
    ]
    assert {schedule.name for _, schedule in RULES.values()} == {"sequential", "gpipe", "1f1b_flush", "1f1b"}


def test_vertical_sync_is_off_by_default():
    assert not PipeDream().vertical_sync


def parameters():
    return [nn.Parameter(torch.ones(2))]


@pytest.mark.parametrize(
    "optimizer",
    [
        torch.optim.SGD(parameters(), lr=0.1),
        torch.optim.SGD(parameters(), lr=0.1, momentum=0.9),
        torch.optim.Adam(parameters()),
        torch.optim.AdamW(parameters()),
    ],
)
def test_pipeoptim_takes_optimizers_that_have_a_prediction_rule(optimizer):
    PipeOptim().check_optimizer(optimizer)


@pytest.mark.parametrize(
    ("optimizer", "named"),
    [
        (torch.optim.RMSprop(parameters()), "RMSprop"),
        (torch.optim.Adagrad(parameters()), "Adagrad"),
        (torch.optim.NAdam(parameters()), "NAdam"),
        (torch.optim.SGD(parameters(), lr=0.1, momentum=0.9, nesterov=True), "nesterov"),
        (torch.optim.Adam(parameters(), amsgrad=True), "amsgrad"),
        (torch.optim.AdamW(parameters(), amsgrad=True), "amsgrad"),
        (torch.optim.SGD(parameters(), lr=0.1, maximize=True), "maximize"),
    ],
)
def test_pipeoptim_refuses_others_naming_those_that_have_a_rule(optimizer, named):
    with pytest.raises(ConfigError) as caught:
        PipeOptim().check_optimizer(optimizer)
    message = str(caught.value)
    assert all(word in message for word in (named, "SGD", "Adam", "AdamW"))
    assert "\n" not in message


@pytest.mark.parametrize("rule", sorted({*SYNCHRONOUS, *ASYNCHRONOUS} - {"pipeoptim"}))
def test_methods_that_predict_nothing_take_any_optimizer(rule):
    RULES[rule][0].check_optimizer(torch.optim.RMSprop(parameters()))
