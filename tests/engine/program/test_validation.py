"""Broken operation lists are refused, with the reason and a grid that marks the guilty cell."""

import pytest

from pipetrain.engine.program.recomputation import RecomputeSegments
from pipetrain.engine.program.validation import ScheduleError, validate
from pipetrain.engine.schedules import Operation

GOOD = ["F0.0 F0.1 B0.0 B0.1 U0", "F0.0 F0.1 B0.0 B0.1 U0"]
WHOLE = ["F0.0 F0.1 B0 U0", "F0.0 F0.1 B0 U0"]
"""One backward of a whole minibatch."""
APART, TOGETHER = RecomputeSegments((0, 1), 2), RecomputeSegments((0,), 2)
REPEATED = ["F0.0 F0.1 R0.0 B0.0 R0.1 B0.1 U0", "F0.0 F0.1 R0.0 B0.0 R0.1 B0.1 U0"]
"""With a recomputation."""


def lists(*texts):
    return [[Operation.parse(word) for word in text.split()] for text in texts]


def refused(*texts, microbatches=2, minibatches=1, segments=None):
    with pytest.raises(ScheduleError) as caught:
        validate(lists(*texts), microbatches, minibatches, segments)
    return str(caught.value)


def row(message, stage):
    return next(line for line in message.splitlines() if line.startswith(f"stage {stage}  "))


BROKEN = [
    *((GOOD[0], GOOD[1].replace(op, ""), f"stage 1: {op} is missing") for op in ("F0.1", "B0.1", "U0")),
    *((GOOD[0], GOOD[1].replace(op, f"{op} {op}"), f"{op} is in its list twice") for op in ("F0.1", "B0.1", "U0")),
    *((GOOD[0], f"{GOOD[1]} {each}", each) for each in ("F1.0", "B0.2", "U1")),
    (GOOD[0], "F0.0 B0.0 B0.1 F0.1 U0", "B0.1 comes before its forward"),
    ("F0.0 F0.1 B0.0 U0 B0.1", GOOD[1], "B0.1 comes after its update"),
    (GOOD[0], "F0.1 F0.0 B0.0 B0.1 U0", "order"),
    # gradients arrive in the order in which they were sent, so stage 0 would use B0.0's for B0.1
    ("F0.0 F0.1 B0.1 B0.0 U0", GOOD[1], "order"),
    (WHOLE[0], "F0.0 B0 F0.1 U0", "B0 comes before its forward"),
    (WHOLE[0], "F0.0 F0.1 B0.0 B0 U0", "B0 is in its list twice"),
    (WHOLE[0], GOOD[1], "order"),
    (GOOD[0], REPEATED[1], "R0.0 belongs to no minibatch"),
]
BROKEN_RECOMPUTATIONS = [
    (REPEATED[1].replace("R0.1", ""), "R0.1 is missing"),
    ("F0.0 R0.0 R0.1 F0.1 B0.0 B0.1 U0", "R0.1 comes before its forward"),
    ("F0.0 F0.1 R0.0 B0.0 B0.1 R0.1 U0", "B0.1 comes before its recomputation"),
]


@pytest.mark.parametrize(("first", "second", "message"), BROKEN)
def test_broken_lists_are_refused_with_the_operation(first, second, message):
    assert message in refused(first, second)


@pytest.mark.parametrize(("second", "message"), BROKEN_RECOMPUTATIONS)
def test_recomputation_in_a_wrong_place_is_refused(second, message):
    assert message in refused(REPEATED[0], second, segments=APART)


def test_updates_out_of_order_are_refused():
    message = refused("F0.0 F1.0 B0.0 B1.0 U1 U0", "F0.0 B0.0 F1.0 B1.0 U0 U1", microbatches=1, minibatches=2)
    assert "U1 comes before the update of the minibatch before it" in message


def test_deadlocked_lists_are_refused_with_waiting_cells_marked():
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
def test_grid_marks_the_wrong_cell_of_lists_that_do_not_deadlock(broken, stage, guilty):
    message = refused(*broken)
    assert guilty in row(message, stage).split()
    assert message.count("!") == 1


def test_missing_earlier_recomputation_deadlocks_only_in_segment():
    # stage 1 wants R0.1 of stage 0 before it sends B0.0, which stage 0 wants before R0.1
    early = "F0.0 F0.1 R0.0 R0.1 B0.0 B0.1 U0"
    message = refused(REPEATED[0], early, segments=TOGETHER)
    assert "deadlock" in message
    assert "stage 1 at R0.1" in message
    validate(lists(REPEATED[0], early), 2, 1, APART)
