from fractions import Fraction

import pytest

from pipetrain.reproduce.comparison import Agreement, Comparison, agrees, shown


@pytest.mark.parametrize(
    ("printed", "ours", "relation", "expected"),
    [
        ("1.95", Fraction("1.9549"), "=", True),
        ("1.95", Fraction("1.956"), "=", False),
        ("3.15", Fraction("3.155"), "=", True),
        ("5e-4", 0.0005, "=", True),
        (">1.66", 1.6637, ">=", True),
        ("0.5", Fraction("0.53"), "<=", False),
        ("adam", "adamw", "=", False),
    ],
)
def test_numbers_agree_at_the_digits_that_are_printed(printed, ours, relation, expected):
    assert agrees(printed, ours, relation) is expected


def test_difference_without_a_reason_is_open():
    assert Comparison("", "", "2", 3.0).agreement is Agreement.OPEN
    assert Comparison("", "", "2", 3.0, note="why").agreement is Agreement.EXPLAINED
    assert Comparison("", "", "2", 3.0, note="perhaps", explained=False).agreement is Agreement.OPEN


def test_number_that_the_paper_tells_too_little_of_cannot_be_computed():
    assert Comparison("", "", "2", None, note="why").agreement is Agreement.UNDETERMINED
    assert shown(None, "2.0") == ""


def test_number_is_shown_with_one_digit_more_than_is_printed():
    assert [shown(Fraction(2), "2.0"), shown(5 / 3, "1.6"), shown("adam", "x")] == ["2", "1.67", "adam"]
