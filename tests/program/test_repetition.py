"""What plays come to, from states of them."""

import numpy as np
import pytest

from pipetrain.program import repetition
from pipetrain.program.repetition import PlayState, repetition_of


def state(turn, now, under_way, *left, busy=0.0):
    return PlayState(turn, now, steps=100 * turn, busy=np.array([busy]), under_way=under_way, left=np.array(left))


def endless(states):
    yield from states
    pytest.fail("played on")


def test_play_has_the_rate_between_two_states_that_are_one_whatever_came_before():
    states = [
        state(1, 7.0, "a", 9.0, busy=7.0),
        state(2, 10.0, "a", 1.0, busy=8.0),
        state(3, 12.0, "b", 1.0, busy=9.0),
        state(4, 15.0, "a", 1.0, busy=10.0),
    ]
    assert repetition_of(endless(states)) == (2.5, [0.4])


def test_states_with_other_things_under_way_or_other_times_left_are_not_one(monkeypatch):
    monkeypatch.setattr(repetition, "_MOST_STEPS", 500)
    times = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
    others = [state(turn, now, "ab"[turn % 2], float(turn)) for turn, now in enumerate(times, start=1)]
    assert repetition_of(endless(others)).turn_s == pytest.approx((32 - 8) / 2)  # the second half
