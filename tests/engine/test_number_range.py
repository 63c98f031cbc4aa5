"""Ranges of numbers."""

import math

import pytest

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.number_range import BELOW_ONE, NOT_NEGATIVE, POSITIVE, SHARE, NumberRange


@pytest.mark.parametrize(
    ("numbers", "inside", "outside"),
    [
        (POSITIVE, [1e-300, 3], [0, -1, 0.0]),
        (NOT_NEGATIVE, [0, 1e300], [-1e-300]),
        (SHARE, [0, 1], [1.1, -0.1]),
        (BELOW_ONE, [0, 0.999], [1, -0.1]),
        (NumberRange(least=-math.inf), [-1e300, 0], []),
    ],
)
def test_ends_are_in_a_range_as_it_says(numbers, inside, outside):
    assert all(value in numbers for value in inside)
    assert all(value not in numbers for value in [*outside, math.nan, math.inf, -math.inf, True, "1", None, [1]])


@pytest.mark.parametrize(
    ("numbers", "value", "message"),
    [
        (POSITIVE, 0, "x=0: must be a number above 0, or null"),
        (NOT_NEGATIVE, None, "x=null: must be a number of at least 0, or null"),
        (SHARE, 2, "x=2: must be a number of at least 0 and at most 1, or null"),
        (BELOW_ONE, math.nan, "x=nan: must be a number of at least 0 and below 1, or null"),
    ],
)
def test_number_out_of_range_is_refused_with_the_range(numbers, value, message):
    with pytest.raises(ConfigError) as caught:
        numbers.check("x", value, "or null")
    assert str(caught.value) == message
