"""Operations print and parse back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipetrain.engine.schedules.operation import Kind, Operation, backward, forward, update, weight_gradient

COUNTS = st.integers(0, 10**9)


@given(kind=st.sampled_from([kind for kind in Kind if kind is not Kind.UPDATE]), minibatch=COUNTS, microbatch=COUNTS)
def test_printed_operations_parse_back(kind, minibatch, microbatch):
    operation = Operation(kind, minibatch, microbatch)
    assert str(operation) == f"{kind.value}{minibatch}.{microbatch}"
    assert Operation.parse(str(operation)) == operation


@given(kind=st.sampled_from([Kind.RECOMPUTATION, Kind.BACKWARD, Kind.UPDATE]), minibatch=COUNTS)
def test_printed_whole_minibatch_operations_parse_back(kind, minibatch):
    operation = Operation(kind, minibatch, None)
    assert str(operation) == f"{kind.value}{minibatch}"
    assert Operation.parse(str(operation)) == operation


def test_short_forms_make_the_operations_that_their_letters_name():
    made = [forward(3), backward(3, 1), backward(3, None), weight_gradient(3, 1), update(3)]
    assert [str(op) for op in made] == ["F3.0", "B3.1", "B3", "W3.1", "U3"]


def test_operation_covers_its_microbatch_or_all_of_them():
    assert list(forward(3, 2).covers(4)) == [2]
    assert list(backward(3, None).covers(4)) == list(update(3).covers(4)) == [0, 1, 2, 3]


def test_operation_of_changed_kind_keeps_its_microbatches():
    assert str(backward(3, 1).like(Kind.RECOMPUTATION)) == "R3.1"
    assert str(backward(3, None).like(Kind.RECOMPUTATION)) == "R3"


@pytest.mark.parametrize(
    "text", ["", "F", "F3", "R", "R3.", "B", "F3.", "F.0", "U3.0", "W3", "X3.0", "f3.0", "F-1.0", "F3.0 ", "F3.0@v1"]
)
def test_text_that_is_no_operation_is_refused_and_quoted(text):
    with pytest.raises(ValueError, match="no operation") as caught:
        Operation.parse(text)
    assert repr(text) in str(caught.value)
