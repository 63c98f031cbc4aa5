"""A worker's activity and heartbeats, and the clock of the monitors."""

import itertools
import os
import time

import pytest
from support.sleepers import beat_of, sleeper
from torch.distributed import HashStore

from pipetrain.runner.launch.heartbeat import Activity, Heartbeat, SuspendAwareClock


def test_activity_within_a_wait_says_what_waits_for_what():
    activity, changes = Activity(), []
    activity.now("F3.0")
    changes.append(activity.changes)
    with activity.wait("stage 1"):
        changes.append(activity.changes)
        assert (activity.what, activity.waiting) == ("F3.0, waiting for stage 1", True)
        with activity.compute("F3.1"):
            changes.append(activity.changes)
            assert (activity.what, activity.waiting) == ("F3.1", False)
        changes.append(activity.changes)
        assert activity.waiting
    changes.append(activity.changes)
    assert (activity.what, activity.waiting) == ("F3.0", False)
    assert changes == sorted(set(changes)), "every change is counted"


def test_wait_that_fails_is_over():
    activity = Activity()
    with pytest.raises(ValueError, match="lost"), activity.wait("stage 1"):
        raise ValueError("lost")
    assert (activity.what, activity.waiting) == ("starting", False)


def test_finished_worker_neither_starts_nor_waits():
    activity = Activity()
    activity.begin()
    activity.finish()
    assert (activity.starting, activity.waiting, activity.finished) == (False, False, True)


def test_heartbeat_is_read_as_it_was_published():
    store, beat = HashStore(), beat_of(1, os.getpid(), 7, born=3, what="F3.0", waiting=True, changes=5)
    assert Heartbeat.read(store, [0, 1]) == {}
    beat.publish(store)
    assert Heartbeat.read(store, [0, 1]) == Heartbeat.read(store, [1]) == {1: beat}


@pytest.mark.parametrize(
    "entry",
    [
        "", "no heartbeat", "[]", "{}", "null",
        '{"process": 0, "pid": "x", "host": "", "number": 1, "activity": {}}',
        '{"process": 1, "pid": 1, "host": "", "number": 1, "activity": {}}',
    ],
)  # fmt: skip
def test_entry_of_another_program_is_no_heartbeat(entry):
    store = HashStore()
    store.set("pipetrain/beat/0", entry)
    assert Heartbeat.read(store, [0]) == {}


def test_local_worker_is_gone_when_its_process_has_ended(monkeypatch):
    with sleeper() as process:
        assert not beat_of(1, process.pid).is_gone
    assert beat_of(1, process.pid).is_gone
    assert not Heartbeat(1, process.pid, "elsewhere", 1).is_gone

    def of_another_user(_pid, _number):
        raise PermissionError

    monkeypatch.setattr(os, "kill", of_another_user)
    assert beat_of(0, os.getpid()).is_gone


def test_pause_between_two_looks_counts_only_so_much(monkeypatch):
    times = itertools.chain([100.0, 100.5, 100.75, 4000.0, 4000.5])
    monkeypatch.setattr(time, "monotonic", lambda: next(times))
    clock = SuspendAwareClock()
    assert [clock.look() for _ in range(4)] == [0.5, 0.75, 2.75, 3.25]
