"""What each method declares, and which optimizers it refuses."""

import pytest
import torch
from support.methods import ASYNCHRONOUS, METHODS, SYNCHRONOUS
from support.moments import parameters

from pipetrain.engine.methods import Method
from pipetrain.engine.schedules.base import Family

FAMILIES = {
    Family.SYNCHRONOUS: SYNCHRONOUS,
    Family.DOUBLE_BUFFERED: ("pipedream_2bw",),
    Family.WHOLE_BACKWARD: ("timeprest", "v_timeprest", "i_timeprest"),
}


@pytest.mark.parametrize("rule", METHODS)
def test_method_and_its_default_schedule_are_of_one_family(rule):
    method, schedule = METHODS[rule]
    assert isinstance(method, Method)
    assert method.family is schedule.family
    assert method.family is next((each for each, rules in FAMILIES.items() if rule in rules), Family.CONTINUOUS)


def test_method_and_schedule_names_match_configuration():
    own = {"naive_async", "pipedream", "pipeoptim", "pipedream_2bw", "spectrain", "stale", "pipemare"}
    own |= {"timeprest", "v_timeprest", "i_timeprest", "lwp"}
    assert {method.name for method, _ in METHODS.values()} == {*own, "synchronous"}
    schedules = {"sequential", "gpipe", "1f1b_flush", "1f1b", "1f1b_2bw", "pipelined_backprop", "pipemare", "nf1b"}
    assert {schedule.name for _, schedule in METHODS.values()} == schedules


PREDICTING = {"pipeoptim", "pipeoptim_backprop", "spectrain", "spectrain_depth"}


@pytest.mark.parametrize("rule", sorted({*SYNCHRONOUS, *ASYNCHRONOUS} - PREDICTING))
def test_methods_that_predict_nothing_take_any_optimizer(rule):
    METHODS[rule][0].check_optimizer(torch.optim.Rprop(parameters()))
