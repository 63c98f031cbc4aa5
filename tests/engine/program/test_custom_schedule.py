"""Schedules from outside the package: what a wrong one returns is named before a run starts."""

import re

import pytest

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.program.custom_schedule import check_attributes, check_custom_schedule
from pipetrain.engine.schedules.base import Family, ListSchedule, Schedule
from pipetrain.engine.schedules.gpipe import GPipe
from pipetrain.engine.schedules.one_f_one_b import OneFOneB
from pipetrain.engine.schedules.operation import Kind, Operation, update


class Own(OneFOneB):
    """Not of the package, and right."""


class Reversed(OneFOneB):
    def operations(self, r, D, N, M):
        found = super().operations(r, D, N, M)
        return found[::-1] if r == 1 else found


class Swapped(OneFOneB):
    def operations(self, r, D, N, M):
        return super().operations(D - 1 - r, D, N, M)


class Deeper(OneFOneB):
    def operations(self, r, D, N, M):
        return super().operations(r, D + 1, N, M)


class LateUpdate(OneFOneB):
    def operations(self, *place):
        found = super().operations(*place)
        if update(1) in found:
            found.remove(update(0))
            found.insert(found.index(update(1)), update(0))
        return found


class Short(OneFOneB):
    def operations(self, r, D, N, M):
        return super().operations(r, D, N, M - 1)


class Endless(OneFOneB):
    def operations(self, *_place):
        t = 0
        while True:
            yield Operation(Kind.FORWARD, t)
            t += 1


class Generator(OneFOneB):
    def operations(self, r, D, N, M):
        yield from super().operations(r, D, N, M)


class Texts(OneFOneB):
    def operations(self, r, D, N, M):
        return [str(op) for op in super().operations(r, D, N, M)]


class Nothing(OneFOneB):
    def operations(self, *_place):
        return None


class Failing(OneFOneB):
    def operations(self, r, *_place):
        return {}[r]


class Fractional(OneFOneB):
    def in_flight(self, *_place):
        return 1.5


class TooMany(GPipe):
    def in_flight(self, *_place):
        return 99

    def operations(self, *place):
        return GPipe().operations(*place)


class TooFew(TooMany):
    def in_flight(self, *_place):
        return 1


class Undelayed(OneFOneB):
    def delay(self, *_place):
        return 0


class Nameless(OneFOneB):
    name = None


class Orphan(ListSchedule):
    name = "orphan"

    def in_flight(self, *_place):
        return 1

    def operations(self, *_place):
        return []


class Textual(OneFOneB):
    family = "continuous"


class Particular(OneFOneB):
    def check(self, *_place):
        raise ConfigError("partition.stages: two stages are needed")


class Listless(Schedule):
    name = "listless"
    family = Family.CONTINUOUS

    def delay(self, *_place):
        return 0


def test_a_right_schedule_passes():
    check_custom_schedule(Own(), 3, 2)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (Reversed, "its lists for D=3, N=1, M=1 cannot run: stage 1, operation 1: B0.0 comes before its forward"),
        (Swapped, "its lists for D=3, N=1, M=2 cannot run: the operation lists deadlock: stage 0 at B0.0, stage 1"),
        (Deeper, "stage 2, operation 1: F1.0 starts 1 updates before its own, but delay(2, 3, 1) returned 0"),
        (LateUpdate, "stage 0, operation 3: B1.0 starts after 0 updates; U0 must come first"),
        (Short, "its lists for D=3, N=1, M=1 cannot run: stage 0: B0.0 is missing from its list"),
        (Endless, "operations(0, 3, 1, 1) returned generator; a list of"),
        (Generator, "operations(0, 3, 1, 1) returned generator; a list of"),
        (Texts, "operations(0, 3, 1, 1) has 'F0.0' at 0; must be a list of pipetrain.Operation"),
        (Nothing, "operations(0, 3, 1, 1) returned NoneType"),
        (Failing, "operations(0, 3, 1, 1) raised KeyError: 0 ("),
        (Fractional, "in_flight(0, 3, 1) returned 1.5; must be a whole number of at least 1"),
        (Undelayed, "stage 0, operation 1: F1.0 starts 1 updates before its own, but delay(0, 3, 1) returned 0"),
        (Particular, "partition.stages: two stages are needed"),
        (Listless, "pipetrain.ListSchedule"),
    ],
)
def test_what_no_pipeline_can_carry_out_is_refused(schedule, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        check_custom_schedule(schedule(), 3, 1)


@pytest.mark.parametrize("schedule", [TooMany, TooFew])
def test_number_in_flight_is_compared_with_the_list(schedule):
    with pytest.raises(ConfigError, match=r"in_flight\(0, 3, 4\) returned (99|1), but the list of stage 0 has up to 4"):
        check_custom_schedule(schedule(), 3, 4)


@pytest.mark.parametrize(
    ("schedule", "missing"), [(Nameless, "no name"), (Orphan, "no family"), (Textual, "'continuous'")]
)
def test_schedule_without_name_or_family_is_refused(schedule, missing):
    with pytest.raises(ConfigError, match=missing):
        check_attributes(schedule())
