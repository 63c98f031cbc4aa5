"""The monitor of the workers: what it sees of those that cannot report it themselves."""

import os
import signal
import threading
import time
from dataclasses import replace

import pytest
from support.sleepers import beat_of, sleeper
from support.waiting import eventually
from support.worker_pool import job

from pipetrain.engine.errors import RunError
from pipetrain.runner.launch import monitor
from pipetrain.runner.launch.failure_note import FailureKind, FailureNote, failure_notes
from pipetrain.runner.launch.heartbeat import Activity, Heartbeat
from pipetrain.runner.launch.monitor import LauncherMonitor, UnreportedWorkerFailure

HERE = os.getpid()


@pytest.fixture(autouse=True)
def clock(clock):
    """The clock of every monitor of this file."""
    return clock


class Workers(list):
    """Kills as a launcher does; `processes` are the workers, `self` the numbers of those that were killed."""

    def __init__(self):
        super().__init__()
        self.processes = {}

    def kill(self, number):
        self.append(number)
        if number in self.processes:
            self.processes[number].kill()


@pytest.fixture
def workers():
    return Workers()


def of_launcher(tmp_path, store, workers, count=2):
    made = job(tmp_path, "pipedream", count, launch={"hang_timeout": 1.0, "start_timeout": 60.0})
    return LauncherMonitor(made, store, workers.kill)


@pytest.fixture
def launcher(tmp_path, store, workers):
    """The launcher's monitor of two workers, which looks only when it is told to."""
    return of_launcher(tmp_path, store, workers)


@pytest.fixture
def running(tmp_path, store, workers, monkeypatch):
    """The launcher's monitor in its thread, which looks all the time."""
    monkeypatch.setattr(monitor, "BEAT_SECONDS", 0.01)
    with of_launcher(tmp_path, store, workers) as made:
        yield made


@pytest.fixture
def look(launcher, clock, store):
    """Has the launcher's monitor look at a time, after these heartbeats."""

    def at(seconds, *beats):
        clock.seconds = seconds
        for beat in beats:
            beat.publish(store)
        launcher.look()

    return at


@pytest.fixture
def seen(clock, store):
    """Waits until the monitor's thread has looked at a time, after these heartbeats."""

    def at(seconds, *beats):
        for beat in beats:
            beat.publish(store)
        clock.seconds, before = seconds, clock.looks
        eventually(lambda: clock.looks >= before + 3)

    return at


def test_silent_worker_is_named_and_killed(look, workers, run):
    for seconds, number in ((1.0, 7), (2.0, 7), (2.5, 8), (3.0, 9)):
        look(seconds, beat_of(1, HERE, number))
    look(4.0)
    assert workers == []
    look(4.1)
    look(9.0)
    assert workers == [1]
    assert failure_notes(run) == {1: FailureNote(FailureKind.HUNG, "no sign of life for 1 s")}


def test_entry_that_is_no_heartbeat_is_neither_life_nor_silence(look, store, workers):
    store.set("pipetrain/beat/0", "no heartbeat")
    look(1.0)
    look(2.0, beat_of(0, HERE, number=5))
    store.set("pipetrain/beat/0", "no heartbeat")
    look(9.0)
    assert workers == []
    look(10.0, beat_of(0, HERE, number=5))
    look(10.1)
    assert workers == [0]


@pytest.mark.parametrize("forged", [{"number": 4}, {"number": 9, "pid": 1}], ids=["older", "other process"])
def test_heartbeat_that_the_worker_cannot_have_left_is_ignored(look, workers, forged):
    own = beat_of(0, HERE, number=5)
    look(2.0, own)
    look(9.0, replace(own, activity=Activity(finished=True), **forged))
    assert workers == []
    look(10.0, beat_of(0, HERE, number=6))
    look(12.0)
    assert workers == [0]


def missing(watching):
    """The process that the monitor misses, and how it failed."""
    with pytest.raises(UnreportedWorkerFailure) as caught:
        watching.check()
    return caught.value.process, str(caught.value)


def test_worker_that_never_starts_is_missed(running, seen):
    seen(60.0, beat_of(0, HERE, waiting=True))
    running.check()
    seen(60.1)
    assert missing(running) == (1, "did not start within launch.start_timeout=60 seconds")


def test_worker_leaving_with_0_before_finishing_is_missed(launcher, look):
    look(0.0, beat_of(0, HERE, finished=True), beat_of(1, HERE, what="F3.0"))
    launcher.check_finished(0)
    with pytest.raises(UnreportedWorkerFailure) as caught:
        launcher.check_finished(1)
    assert caught.value.process == 1


@pytest.mark.parametrize("waits", [True, False])
def test_workers_hang_if_all_wait_for_each_other(running, seen, waits):
    def beats(number):
        yield beat_of(0, HERE, number, what="F0.0, waiting", waiting=True)
        yield beat_of(1, HERE, number, what="F1.0, waiting", waiting=waits)

    seen(0.0, *beats(1))
    seen(1.1, *beats(2))
    if waits:
        how = "hung: 1 s in F0.0, waiting, and every other stage waits as well: process 1 in F1.0, waiting"
        assert missing(running) == (0, how)
    else:
        running.check()


@pytest.mark.usefixtures("running")
def test_process_that_stays_after_the_end_of_the_run_is_ended(workers, seen):
    with sleeper() as worker, sleeper() as bystander:
        workers.processes.update({0: worker, 1: worker})
        seen(0.0, *(beat_of(process, bystander.pid, finished=True) for process in (0, 1)))
        assert workers == []
        seen(11.0)
        assert worker.wait(timeout=20) == -signal.SIGKILL
        assert bystander.poll() is None, "it kills its own worker, and not what a heartbeat names"


def test_stop_order_reaches_workers_once_all_train(launcher, look, store):
    assert not launcher.break_off(), "nobody was heard of"
    look(0.0, beat_of(0, HERE), beat_of(1, HERE, starting=True))
    assert not launcher.break_off()
    assert not store.check(["pipetrain/break-off"])
    look(0.0, beat_of(1, HERE, number=2))
    assert launcher.break_off()
    assert store.check(["pipetrain/break-off"])


def test_failing_monitor_thread_ends_the_run(running, monkeypatch):
    def fails(_store, _processes):
        failed.set()
        raise ZeroDivisionError("no reason")

    failed = threading.Event()
    monkeypatch.setattr(Heartbeat, "read", fails)
    assert failed.wait(20)
    time.sleep(0.05)
    with pytest.raises(RunError, match="ZeroDivisionError"):
        running.check()
