"""When stages recompute, and what is added to their lists."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipetrain.engine.program.recomputation import RecomputeSegments, sender_of, with_recomputation
from pipetrain.engine.schedules.gpipe import GPipe
from pipetrain.engine.schedules.nf1b import NF1B
from pipetrain.engine.schedules.one_f_one_b import OneFOneB
from pipetrain.engine.schedules.operation import Kind, Operation
from pipetrain.engine.schedules.pipelined_backprop import PipeMareSchedule


@pytest.mark.parametrize(
    ("firsts", "lead", "begins", "ends"),
    [
        ((0, 1, 2, 3), [0, 0, 0, 0], [True] * 4, [True] * 4),
        ((0,), [6, 4, 2, 0], [True, False, False, False], [False, False, False, True]),
        ((0, 2), [2, 0, 2, 0], [True, False, True, False], [False, True, False, True]),
        ((0, 3), [4, 2, 0, 0], [True, False, False, True], [False, False, True, True]),
    ],
)
def test_neighboring_recomputations_in_segment_are_2_steps_apart(firsts, lead, begins, ends):
    segments = RecomputeSegments(firsts, 4)
    assert [segments.lead(r) for r in range(4)] == lead
    assert [segments.begins(r) for r in range(4)] == begins
    assert [segments.ends(r) for r in range(4)] == ends


def text(operations):
    return " ".join(str(op) for op in operations)


def test_recomputation_leads_backward_once_forward_has_ended():
    plain = PipeMareSchedule().operations(0, 2, 1, 3)
    assert text(plain) == "F0.0 F1.0 F2.0 B0.0 U0 B1.0 U1 B2.0 U2"
    assert text(with_recomputation(plain, 0)) == "F0.0 F1.0 F2.0 R0.0 B0.0 U0 R1.0 B1.0 U1 R2.0 B2.0 U2"
    assert text(with_recomputation(plain, 2)) == "F0.0 F1.0 F2.0 R0.0 R1.0 R2.0 B0.0 U0 B1.0 U1 B2.0 U2"
    soon = OneFOneB().operations(1, 2, 1, 2)  # the forward of minibatch 1 comes after the backward of minibatch 0
    assert text(with_recomputation(soon, 2)) == "F0.0 R0.0 B0.0 U0 F1.0 R1.0 B1.0 U1"


@given(
    st.sampled_from([GPipe(), OneFOneB(), NF1B(), PipeMareSchedule()]),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(0, 6),
)
def test_recomputation_keeps_order_of_other_operations(schedule, D, N, lead):
    plain = schedule.operations(0, D, N, 4)
    added = with_recomputation(plain, lead)
    assert [op for op in added if op.kind is not Kind.RECOMPUTATION] == plain
    backwards = [op for op in plain if op.kind is Kind.BACKWARD]
    assert [op.like(Kind.BACKWARD) for op in added if op.kind is Kind.RECOMPUTATION] == backwards
    for op in backwards:
        assert added.index(op.like(Kind.RECOMPUTATION)) < added.index(op)


@pytest.mark.parametrize(
    ("word", "senders"),
    [
        ("F0.0", [None, 0, 1, 2]),
        ("R0.0", [None, 0, None, 2]),
        ("B0.0", [1, 2, 3, None]),
        ("B0", [1, 2, 3, None]),
        ("U0", [None] * 4),
    ],
)
def test_inputs_come_from_neighbors_and_recomputed_from_segment(word, senders):
    segments = RecomputeSegments((0, 2), 4)
    assert [sender_of(Operation.parse(word), r, 4, segments) for r in range(4)] == senders
