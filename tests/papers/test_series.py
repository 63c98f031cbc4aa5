"""Numbers as they are written in few bytes."""

import json
from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from papers.series import in_series, listed

NUMBERS = st.none() | st.integers(-9, 9) | st.floats(-9, 9)
EQUAL_STEPS = st.tuples(st.integers(-9, 9), st.integers(-3, 3), st.integers(1, 9)).map(
    lambda series: [series[0] + series[1] * index for index in range(series[2])]
)


@given(st.lists(st.lists(NUMBERS, max_size=3) | EQUAL_STEPS, max_size=6).map(lambda parts: [*chain(*parts)]))
def test_values_are_read_as_they_were_written(values):
    read = listed(json.loads(json.dumps(in_series(values))))
    assert [repr(each) for each in read] == [repr(each) for each in values]


def test_whole_numbers_in_four_or_more_equal_steps_are_a_series():
    assert in_series([1, 1, 1, 1, 2, 4, 6, 8, 10, 3]) == [(1, 0, 4), (2, 2, 5), 3]
    assert in_series([1, 2, 3, 0.5, 1.5, 2.5, 3.5, None]) == [1, 2, 3, 0.5, 1.5, 2.5, 3.5, None]
