"""Broken operation lists are refused, with the reason and a grid that marks the guilty cell."""

import pytest

from pipetrain.schedules.operation import Operation
from pipetrain.schedules.validate import ScheduleError, validate

GOOD = ["F0.0 F0.1 B0.0 B0.1 U0", "F0.0 F0.1 B0.0 B0.1 U0"]


def lists(*texts):
    return [[Operation.parse(word) for word in text.split()] for text in texts]


def refused(*texts, microbatches=2, minibatches=1):
    with pytest.raises(ScheduleError) as caught:
        validate(lists(*texts), microbatches, minibatches)
    return str(caught.value)


def row(message, stage):
    return next(line for line in message.splitlines() if line.startswith(f"stage {stage}  "))


def test_good_lists_pass():
    validate(lists(*GOOD), 2, 1)


@pytest.mark.parametrize("operation", ["F0.1", "B0.1", "U0"])
def test_a_missing_operation_is_named_with_its_stage(operation):
    message = refused(GOOD[0], GOOD[1].replace(operation, ""))
    assert "stage 1" in message
    assert f"{operation} is missing" in message


@pytest.mark.parametrize("operation", ["F0.1", "B0.1", "U0"])
def test_an_operation_that_stands_twice_is_named_with_its_stage(operation):
    message = refused(GOOD[0], GOOD[1].replace(operation, f"{operation} {operation}"))
    assert "stage 1" in message
    assert f"{operation} stands twice" in message


@pytest.mark.parametrize("operation", ["F1.0", "B0.2", "U1"])
def test_an_operation_of_no_minibatch_is_named(operation):
    assert operation in refused(GOOD[0], f"{GOOD[1]} {operation}")


def test_a_backward_before_its_forward_is_refused():
    assert "B0.1 comes before its forward" in refused(GOOD[0], "F0.0 B0.0 B0.1 F0.1 U0")


def test_an_update_before_a_backward_of_its_minibatch_is_refused():
    assert "B0.1 comes after its update" in refused("F0.0 F0.1 B0.0 U0 B0.1", GOOD[1])


def test_updates_out_of_order_are_refused():
    message = refused("F0.0 F1.0 B0.0 B1.0 U1 U0", "F0.0 B0.0 F1.0 B1.0 U0 U1", microbatches=1, minibatches=2)
    assert "U1 comes before the update of the minibatch before it" in message


def test_forwards_in_another_order_than_the_stage_before_are_refused():
    assert "order" in refused(GOOD[0], "F0.1 F0.0 B0.0 B0.1 U0")


def test_backwards_in_another_order_than_the_stage_behind_are_refused():
    # gradients arrive in the order in which they were sent, so stage 0 would use B0.0's for B0.1
    assert "order" in refused("F0.0 F0.1 B0.1 B0.0 U0", GOOD[1])


def test_lists_that_wait_for_each_other_are_refused_and_each_guilty_cell_is_marked():
    # stage 0 wants B0.0 before it sends F0.1, which stage 1 wants before it sends B0.0
    message = refused("F0.0 B0.0 F0.1 B0.1 U0", GOOD[0])
    assert "deadlock" in message
    assert "stage 0 at B0.0" in message
    assert "stage 1 at F0.1" in message
    assert row(message, 0).split()[2:] == ["F0.0", "!B0.0"]
    assert row(message, 1).split()[2:] == [".", "F0.0", "!F0.1"]


@pytest.mark.parametrize(
    ("broken", "stage", "guilty"),
    [
        ((GOOD[0], "F0.0 F0.1 F0.1 B0.0 B0.1 U0"), 1, "!F0.1"),
        ((GOOD[0], "F0.0 B0.0 B0.1 F0.1 U0"), 1, "!B0.1"),
        ((GOOD[0], "F0.1 F0.0 B0.0 B0.1 U0"), 1, "!F0.1"),
        (("F0.0 F0.1 B0.0 U0 B0.1", GOOD[1]), 0, "!B0.1"),
    ],
)
def test_the_grid_marks_the_guilty_cell_of_lists_that_are_wrong_but_do_not_wait(broken, stage, guilty):
    message = refused(*broken)
    assert guilty in row(message, stage).split()
    assert message.count("!") == 1
