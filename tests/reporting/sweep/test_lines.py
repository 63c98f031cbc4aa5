"""Colors of groups."""

import itertools

import pytest

from pipetrain.reporting.sweep.lines import FAMILIES, OTHERS, line_styles, spread_labels
from pipetrain.runner.config.choices import choices_of


def test_every_method_of_ours_is_of_a_family():
    families = [choice.remarks.get("family") for choice in choices_of("method")]
    assert set(families) == set(FAMILIES)


def test_methods_without_family_have_own_colors_and_styles():
    mine, gpipe, yours = line_styles(["mine", "gpipe", "yours"])
    assert mine.color == OTHERS
    assert yours.color != OTHERS
    assert OTHERS not in FAMILIES.values()
    assert gpipe.color in FAMILIES.values()
    assert mine.dashes != yours.dashes


def test_method_of_a_family_without_a_color_is_as_one_without_family(monkeypatch):
    monkeypatch.delitem(FAMILIES, "prediction")  # as if a package had brought it
    assert [style.color for style in line_styles(["gpipe", "lwp"])] == [FAMILIES["synchronous"], OTHERS]


def test_methods_of_a_family_have_shades_of_its_color():
    every = [choice.name for choice in choices_of("method")]
    found = line_styles(every)
    assert len({look.color for look in found}) == len(every)
    assert {look.color for look in found} > set(FAMILIES.values())


def test_settings_of_a_method_get_paler_and_stay_visible():
    gpipe, *stale = line_styles(["gpipe", *["stale"] * 5])
    assert gpipe.color == FAMILIES["synchronous"]
    light = [sum(int(look.color[at : at + 2], 16) for at in (1, 3, 5)) / (3 * 255) for look in stale]
    assert light == sorted(light)
    assert all(paler - darker > 0.05 for darker, paler in itertools.pairwise(light))
    assert light[-1] < 0.85


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
