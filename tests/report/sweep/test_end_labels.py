"""Names at the ends of lines."""

import itertools

import pytest

from pipetrain.report.sweep.end_labels import apart


@pytest.mark.parametrize("wanted", [[0.5] * 17, [0.1, 0.9, 0.5], [1.0, 0.99, 0.0], [0.0] * 5, [0.3, 0.31, 0.32, 0.9]])
def test_names_never_overlap_keep_their_order_and_stay_in_the_panel(wanted):
    places = apart(wanted, 0.05)
    rising = sorted(places)
    assert all(above - below >= 0.05 - 1e-9 for below, above in itertools.pairwise(rising))
    assert [wanted[places.index(place)] for place in rising] == sorted(wanted)
    assert rising[0] >= -1e-9
    assert rising[-1] <= 1 + 1e-9


def test_names_with_room_stay_where_their_lines_end():
    assert apart([0.9, 0.1, 0.5], 0.1) == [0.9, 0.1, 0.5]
