"""Computations of a host that share its cores."""

import math

import pytest

from pipetrain.program.shared_cores import CoreClock, SharedCores


def ended(clock):
    now = clock.next_end()
    return now, clock.end(now)


def test_computations_share_the_cores_evenly_from_when_one_begins_to_when_one_ends():
    clock = CoreClock(2)
    for begin, seconds in ((0.0, 3.0), (0.0, 1.0), (0.5, 1.0)):
        clock.begin(begin, seconds, seconds + begin)
    # 0.5 s of two at full speed, then of three at two thirds, which leaves 0.5 s of the second: 0.75 s more
    assert ended(clock) == (pytest.approx(1.25), 1.0)
    # two again: 0.5 s of the third are left, and 2 s of the first
    assert ended(clock) == (pytest.approx(1.75), 1.5)
    assert ended(clock) == (pytest.approx(3.25), 3.0)
    assert clock.next_end() == math.inf


def test_computations_no_more_than_the_cores_go_at_full_speed():
    clock = CoreClock(2)
    clock.begin(1.0, 2.0, "a")
    clock.begin(2.0, 0.5, "b")
    assert dict(clock.left(2.25)) == {"a": 0.75, "b": 0.25}
    assert [ended(clock), ended(clock)] == [(2.5, "b"), (3.0, "a")]


def test_computation_after_an_idle_stretch_takes_as_long_as_before():
    clock = CoreClock(1)
    for begin in (0.0, 1e9):
        clock.begin(begin, 2.0, begin)
        assert ended(clock) == (begin + 2.0, begin)


def test_cores_are_scarce_where_some_host_has_more_devices():
    assert not SharedCores(2, [0, 0, 1, 1]).scarce
    assert SharedCores(2, [0, 1, 1, 1]).scarce
    assert SharedCores(1.5, [0, 0]).scarce
