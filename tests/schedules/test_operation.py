"""Operations print and parse back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipetrain.schedules.operation import Kind, Operation, backward, forward, update

COUNTS = st.integers(0, 10**9)


@given(kind=st.sampled_from([Kind.FORWARD, Kind.BACKWARD]), minibatch=COUNTS, microbatch=COUNTS)
def test_forwards_and_backwards_parse_back_from_what_they_print(kind, minibatch, microbatch):
    operation = Operation(kind, minibatch, microbatch)
    assert str(operation) == f"{kind.value}{minibatch}.{microbatch}"
    assert Operation.parse(str(operation)) == operation


@given(minibatch=COUNTS)
def test_updates_parse_back_from_what_they_print(minibatch):
    assert Operation.parse(f"U{minibatch}") == update(minibatch)
    assert str(update(minibatch)) == f"U{minibatch}"


def test_the_short_forms_make_the_operations_of_their_letters():
    assert [str(op) for op in (forward(3), backward(3, 1), update(3))] == ["F3.0", "B3.1", "U3"]


@pytest.mark.parametrize("text", ["", "F", "F3", "F3.", "F.0", "U3.0", "X3.0", "f3.0", "F-1.0", "F3.0 ", "F3.0@v1"])
def test_what_is_no_operation_is_refused_with_the_text_named(text):
    with pytest.raises(ValueError, match="no operation") as caught:
        Operation.parse(text)
    assert repr(text) in str(caught.value)


def test_equal_operations_are_equal_values():
    assert forward(3, 1) == Operation.parse("F3.1")
    assert len({forward(3, 1), Operation.parse("F3.1"), backward(3, 1)}) == 2
