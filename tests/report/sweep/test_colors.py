"""Colors of groups."""

from pathlib import Path

from pipetrain.config.choices import choices_of
from pipetrain.report.sweep.colors import FAMILIES, OTHERS, group_styles
from pipetrain.report.sweep.compared_run import ComparedRun
from pipetrain.report.sweep.groups import SweepGroup


def group(method):
    return SweepGroup(method, [ComparedRun(Path("a"), "completed", settings={"method": method})])


def test_every_method_of_ours_is_of_a_family():
    families = [choice.remarks.get("family") for choice in choices_of("method")]
    assert set(families) == set(FAMILIES)


def test_methods_of_no_family_have_a_color_of_their_own_and_differ_in_style():
    mine, gpipe, yours = group_styles([group("mine"), group("gpipe"), group("yours")])
    assert mine.color == yours.color == OTHERS
    assert OTHERS not in FAMILIES.values()
    assert gpipe.color in FAMILIES.values()
    assert mine.dashes != yours.dashes


def test_methods_of_a_family_share_a_color_and_differ_in_style():
    every = [group(choice.name) for choice in choices_of("method")]
    found = group_styles(every)
    assert len(set(found)) == len(every)
    assert len({look.color for look in found}) == len(FAMILIES)


def test_groups_of_one_method_differ_in_color():
    assert len({look.color for look in group_styles([group("gpipe")] * 5)}) == 5
