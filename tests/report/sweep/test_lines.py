"""Colors of groups."""

import itertools

import pytest

from pipetrain.config.choices import choices_of
from pipetrain.report.sweep.lines import FAMILIES, OTHERS, line_styles, spread_labels


def test_every_method_of_ours_is_of_a_family():
    families = [choice.remarks.get("family") for choice in choices_of("method")]
    assert set(families) == set(FAMILIES)


def test_methods_without_family_have_own_colors_and_styles():
    mine, gpipe, yours = line_styles(["mine", "gpipe", "yours"])
    assert mine.color == yours.color == OTHERS
    assert OTHERS not in FAMILIES.values()
    assert gpipe.color in FAMILIES.values()
    assert mine.dashes != yours.dashes


def test_method_of_a_family_without_a_color_is_as_one_without_family(monkeypatch):
    monkeypatch.delitem(FAMILIES, "prediction")  # as if a package had brought it
    assert [style.color for style in line_styles(["gpipe", "lwp"])] == [FAMILIES["synchronous"], OTHERS]


def test_methods_of_a_family_share_a_color_and_differ_in_style():
    every = [choice.name for choice in choices_of("method")]
    found = line_styles(every)
    assert len(set(found)) == len(every)
    assert len({look.color for look in found}) == len(FAMILIES)


def test_groups_of_one_method_differ_in_color():
    assert len({look.color for look in line_styles(["gpipe"] * 5)}) == 5


@pytest.mark.parametrize("wanted", [[0.5] * 17, [0.1, 0.9, 0.5], [1.0, 0.99, 0.0], [0.0] * 5, [0.3, 0.31, 0.32, 0.9]])
def test_names_never_overlap_and_keep_order_inside_panel(wanted):
    places = spread_labels(wanted, 0.05)
    rising = sorted(places)
    assert all(above - below >= 0.05 - 1e-9 for below, above in itertools.pairwise(rising))
    assert [wanted[places.index(place)] for place in rising] == sorted(wanted)
    assert rising[0] >= -1e-9
    assert rising[-1] <= 1 + 1e-9


def test_names_with_room_stay_where_their_lines_end():
    assert spread_labels([0.9, 0.1, 0.5], 0.1) == [0.9, 0.1, 0.5]
