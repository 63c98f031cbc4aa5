"""Colors of groups."""

from pathlib import Path

from pipetrain.config.schema import config_dir
from pipetrain.report.sweep.colors import FAMILIES, OTHERS, looks
from pipetrain.report.sweep.compared_run import ComparedRun
from pipetrain.report.sweep.groups import SweepGroup


def group(method):
    return SweepGroup(method, [ComparedRun(Path("a"), "completed", settings={"method": method})])


def test_every_name_in_the_families_is_a_method():
    methods = {path.stem for path in (config_dir() / "method").glob("*.yaml")}
    assert methods >= {method for family in FAMILIES.values() for method in family}


def test_methods_of_no_family_have_a_color_of_their_own_and_differ_in_style():
    mine, gpipe, yours = looks([group("mine"), group("gpipe"), group("yours")])
    assert mine.color == yours.color == OTHERS
    assert OTHERS not in FAMILIES
    assert gpipe.color in FAMILIES
    assert mine.style != yours.style


def test_methods_of_a_family_share_a_color_and_differ_in_style():
    every = [group(method) for family in FAMILIES.values() for method in family]
    found = looks(every)
    assert len(set(found)) == len(every)
    assert len({look.color for look in found}) == len(FAMILIES)


def test_groups_of_one_method_differ_in_color():
    assert len({look.color for look in looks([group("gpipe")] * 5)}) == 5
