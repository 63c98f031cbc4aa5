"""Schedules from outside the package: what a wrong one returns is named before a run starts."""

import re

import pytest
from support.refusals import assert_refused

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.program.custom_schedule import check_attributes, check_custom_schedule
from pipetrain.engine.schedules.base import Family, ListSchedule, Schedule
from pipetrain.engine.schedules.gpipe import GPipe
from pipetrain.engine.schedules.interleaved import Interleaved1F1B
from pipetrain.engine.schedules.one_f_one_b import OneFOneB
from pipetrain.engine.schedules.operation import Kind, Operation, update
from pipetrain.engine.schedules.placement import Placement

USUAL = OneFOneB()


def changed(base=OneFOneB, **attributes):
    """A schedule with other attributes than its class has."""
    for name, value in attributes.items():
        if callable(value):
            value.__name__ = name  # which messages have
    return type("Own", (base,), attributes)()


def late_update(_self, *place):
    found = USUAL.operations(*place)
    if update(1) in found:
        found.remove(update(0))
        found.insert(found.index(update(1)), update(0))
    return found


def endless(_self, *_place):
    t = 0
    while True:
        yield Operation(Kind.FORWARD, t)
        t += 1


def refuses(_self, *_place):
    raise ConfigError("partition.stages: two stages are needed")


WRONG_LISTS = {
    "stage 1, operation 1: B0.0 comes before": (
        lambda _self, r, *rest: USUAL.operations(r, *rest)[:: -1 if r == 1 else 1]
    ),
    "D=3, N=1, M=2 cannot run: the operation lists deadlock: stage 0 at B0.0": (
        lambda _self, r, D, *rest: USUAL.operations(D - 1 - r, D, *rest)
    ),
    "stage 2, operation 1: F1.0 starts 1 updates before": (
        lambda _self, r, D, *rest: USUAL.operations(r, D + 1, *rest)
    ),
    "operation 3: B1.0 starts after 0 updates; U0 ": late_update,
    "stage 0: B0.0 is missing": (lambda _self, r, D, N, M: USUAL.operations(r, D, N, M - 1)),
    "operations(0, 3, 1, 1) returned generator": endless,
    "operations(0, 3, 1, 1) has 'F0.0' at 0": (lambda _self, *place: [str(op) for op in USUAL.operations(*place)]),
    "operations(0, 3, 1, 1) returned NoneType": lambda *_place: None,
    "operations(0, 3, 1, 1) raised KeyError: 0 (": lambda _self, r, *_place: {}[r],
}
WRONG = {
    **{message: {"operations": operations} for message, operations in WRONG_LISTS.items()},
    "in_flight(0, 3, 1) returned 1.5": {"in_flight": lambda *_place: 1.5},
    "stage 0, operation 1: F1.0 starts 1 updates before": {"delay": lambda *_place: 0},
    "stage 0, operation 0: F0.0 starts after 0 updates": {"newest_at_forward": lambda *_place: 1},
    "partition.stages: two stages are needed": {"check": refuses},
    "pipetrain.ListSchedule": {
        "base": Schedule, "name": "listless", "family": Family.CONTINUOUS, "delay": lambda *_place: 0,
    },
}  # fmt: skip


@pytest.mark.parametrize("message", WRONG)
def test_what_no_pipeline_can_carry_out_is_refused(message):
    assert_refused(re.escape(message), check_custom_schedule, changed(**WRONG[message]), 3, 1)


@pytest.mark.parametrize("number", [99, 1])
def test_number_in_flight_is_compared_with_the_list(number):
    schedule = changed(GPipe, in_flight=lambda *_place: number, operations=lambda _self, *at: GPipe().operations(*at))
    assert_refused(rf"in_flight\(0, 3, 4\) returned {number}, .* up to 4", check_custom_schedule, schedule, 3, 4)


@pytest.mark.parametrize(
    ("attributes", "missing"),
    [
        ({"name": None}, "no name"),
        ({"base": ListSchedule, "name": "orphan", "in_flight": None, "operations": None}, "no family"),
        ({"family": "continuous"}, "'continuous'"),
    ],
)
def test_schedule_without_name_or_family_is_refused(attributes, missing):
    assert_refused(missing, check_attributes, changed(**attributes))


INTERLEAVED = Interleaved1F1B()


def shorter(_self, *place):
    return INTERLEAVED.order(*place)[1:]


def early_update(_self, *place):
    """One stage updates before the last backward of the other."""
    order = INTERLEAVED.order(*place)
    return [*order[:-4], order[-1], order[-4], order[-3], order[-2]] if place[0] == 0 else order


def of_another(_self, process, *place):
    return INTERLEAVED.order(1 - process, *place)


def no_order(_self, *_place):
    return None


def reversed_order(_self, *place):
    return INTERLEAVED.order(*place)[::-1]


@pytest.mark.parametrize(
    ("order", "message"),
    {
        shorter: "process 0: its order has 4 operations of stage 0",
        of_another: "order(0, 4, 2, 1) has the stages {1, 3}",
        no_order: "order(0, 4, 2, 1) returned NoneType",
        early_update: "order of process 0: B0.0 of stage 0",
        reversed_order: "the operation lists deadlock: stage 2 at F0.0, stage 3 at F0.0",
    }.items(),
)
def test_order_of_a_process_must_take_each_list_once_and_update_together(order, message):
    check_custom_schedule(changed(Interleaved1F1B), 4, 2)
    assert_refused(re.escape(message), check_custom_schedule, changed(Interleaved1F1B, order=order), 4, 2)


@pytest.mark.parametrize(
    ("placement", "message"),
    [
        (None, "returned None; must be a pipetrain.Placement"),
        (Placement(((0, 1), (3,))), "must have each stage once"),
        (Placement(((2, 0), (1, 3))), "in ascending order: ((0, 2), (1, 3))"),
        (Placement(((3,), (0,), (1,), (2,))), "in ascending order: ((0,), (1,), (2,), (3,))"),
        (Placement(((), (0, 2), (1, 3))), "none empty"),
    ],
)
def test_placement_other_than_that_of_each_stage_in_turn_is_refused(placement, message):
    assert_refused(re.escape(message), check_custom_schedule, changed(placement=lambda _self, _D: placement), 4, 2)
