"""What each method declares, and which optimizers it refuses."""

import math
from dataclasses import replace

import pytest
import torch
from support.methods import ASYNCHRONOUS, METHODS, SYNCHRONOUS
from support.moments import LATER, MOMENT, parameters

from pipetrain.engine.methods import Method
from pipetrain.engine.program.weight_reads import WeightRead
from pipetrain.engine.schedules.base import Family
from pipetrain.engine.schedules.operation import Kind
from pipetrain.engine.weights.transforms import Corrected, Predicted, Scaled

FAMILIES = {
    Family.SYNCHRONOUS: SYNCHRONOUS,
    Family.DOUBLE_BUFFERED: ("pipedream_2bw",),
    Family.WHOLE_BACKWARD: ("timeprest", "v_timeprest", "i_timeprest"),
}


@pytest.mark.parametrize(
    ("rule", "in_forward", "in_backward"),
    [
        ("naive_async", WeightRead(2), WeightRead(4)),
        ("pipedream", WeightRead(2), WeightRead(2)),
        ("vertical_sync", WeightRead(1), WeightRead(1)),
        ("pipeoptim", WeightRead(2, Predicted(2)), WeightRead(4)),
        ("pipedream_2bw", WeightRead(3), WeightRead(3)),
        ("spectrain", WeightRead(2, Predicted(2)), WeightRead(4)),
        ("stale", WeightRead(2), WeightRead(4)),
        ("pipemare_plain", WeightRead(2), WeightRead(4)),
        ("pipemare_t1", WeightRead(2), WeightRead(4)),
        ("pipemare_t2", WeightRead(2), WeightRead(4, Corrected(5))),
        ("pipemare", WeightRead(2), WeightRead(4, Corrected(5))),
        ("timeprest", WeightRead(1), WeightRead(4)),
        ("v_timeprest", WeightRead(2), WeightRead(4)),
        ("i_timeprest", WeightRead(2), WeightRead(2, Scaled(2 - math.exp(0.05 * 2)))),
    ],
)
def test_method_reads_the_versions_of_its_formula_at_one_moment(rule, in_forward, in_backward):
    method = METHODS[rule][0]
    read = method.forward(MOMENT)
    assert read == in_forward
    assert method.backward(LATER, read) == in_backward


@pytest.mark.parametrize(
    ("rule", "in_recomputation"),
    [
        *((rule, WeightRead(4)) for rule in ("gpipe", "naive_async", "pipeoptim", "stale", "timeprest", "v_timeprest")),
        ("pipedream", WeightRead(2)),
        ("vertical_sync", WeightRead(1)),
        ("pipedream_2bw", WeightRead(3)),
        ("spectrain", WeightRead(4)),
        ("pipemare_plain", WeightRead(4)),
        ("pipemare", WeightRead(4, Corrected(5))),
        ("i_timeprest", WeightRead(2)),
    ],
)
def test_recomputation_just_before_backward_reads_its_version(rule, in_recomputation):
    method = METHODS[rule][0]
    again = replace(LATER, operation=LATER.operation.like(Kind.RECOMPUTATION))
    assert method.recomputation(again, method.forward(MOMENT)) == in_recomputation


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
