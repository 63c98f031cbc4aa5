"""What the watching thread of a worker sees, and what it does about it."""

import json
import re
import signal
import socket
import subprocess
import sys
import time

import pytest
from torch.distributed import HashStore

from pipetrain.launch import watchdog
from pipetrain.launch.watchdog import Activity, Watchdog, Watched, leave_failure_note
from pipetrain.tracking.run_directory import RunDirectory

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals are read from a pipe")


def eventually(holds):
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline, "never"
        time.sleep(0.01)


def watch(run, store, process=0, hang_timeout=60.0):
    return Watchdog(Watched(process, 2, RunDirectory(run), hang_timeout), Activity(waiting=True), store)


def test_activity_within_a_wait_is_told_as_what_waits_for_what():
    activity = Activity()
    activity.now("F3.0")
    with activity.wait("stage 1"):
        assert (activity.what, activity.waiting) == ("F3.0, waiting for stage 1", True)
        with activity.compute("F3.1"):
            assert (activity.what, activity.waiting) == ("F3.1", False)
        assert activity.waiting
    assert (activity.what, activity.waiting) == ("F3.0", False)


def test_wait_that_fails_is_over():
    activity = Activity()
    with pytest.raises(ValueError, match="lost"), activity.wait("stage 1"):
        raise ValueError("lost")
    assert (activity.what, activity.waiting) == ("starting", False)


def test_end_of_a_wait_counts_as_a_sign_of_life():
    activity = Activity(since=0.0)
    with activity.wait("stage 1"):
        pass
    assert activity.since > 0.0


def test_watchdog_gives_the_signals_back_when_it_closes(tmp_path):
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with watch(tmp_path, HashStore()):
        assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] != before
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
    assert signal.set_wakeup_fd(-1) == -1


def test_reports_of_workers_that_stop_are_collected_and_a_silent_one_gives_none(tmp_path):
    store = HashStore()
    with watch(tmp_path, store) as first:
        first.report = lambda: [{"stage": 0}]
        assert first.stop_others(seconds=0.05) == [[{"stage": 0}], None]
    second = watch(tmp_path, store, process=1)
    second.report = lambda: [{"stage": 1}]
    with second:
        eventually(lambda: store.check(["pipetrain/report/1"]))
    with watch(tmp_path, store) as first:
        first.report = lambda: [{"stage": 0}]
        assert first.stop_others(seconds=5.0) == [[{"stage": 0}], [{"stage": 1}]]


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs processes that can be killed")
def test_worker_without_a_sign_of_life_is_named_and_killed(tmp_path):
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    store = HashStore()
    store.set("pipetrain/beat/1", json.dumps([7, sleeper.pid, socket.gethostname()]))
    with watch(tmp_path, store, hang_timeout=1.0):
        assert sleeper.wait(timeout=20) == -signal.SIGKILL
    assert RunDirectory(tmp_path).failure_notes().keys() == {1}
    assert RunDirectory(tmp_path).failure_note(1).read_text() == "hung: no sign of life for 1 s\n"


def test_worker_whose_beat_goes_on_is_left_alone(tmp_path):
    store = HashStore()
    with watch(tmp_path, store, hang_timeout=1.5), watch(tmp_path, store, process=1):
        time.sleep(2.0)
    assert RunDirectory(tmp_path).failure_notes() == {}


SIGNALED = """
import os, signal, sys, time
from torch.distributed import HashStore
from pipetrain.launch import watchdog
from pipetrain.tracking.run_directory import RunDirectory
from pathlib import Path

number = getattr(signal, sys.argv[2])
seen = []
signal.signal(number, lambda *_: seen.append(number))
watched = watchdog.Watched(0, 1, RunDirectory(Path(sys.argv[1])), 60.0)
with watchdog.Watchdog(watched, watchdog.Activity(), HashStore()):
    os.kill(os.getpid(), number)
    time.sleep(1.0)  # longer than the watchdog's own look
assert seen == [number]
"""


@pytest.mark.parametrize("name", ["SIGCHLD", "SIGUSR1"])
def test_signal_that_has_another_handler_reaches_it_and_the_worker_lives(tmp_path, name):
    done = subprocess.run([sys.executable, "-c", SIGNALED, str(tmp_path), name], timeout=60, check=False)
    assert done.returncode == 0


HANGING = """
import sys, time
from torch.distributed import HashStore
from pipetrain.launch import watchdog
from pipetrain.tracking.run_directory import RunDirectory
from pathlib import Path

activity = watchdog.Activity()
watched = watchdog.Watched(0, 1, RunDirectory(Path(sys.argv[1])), 0.3)
with watchdog.Watchdog(watched, activity, HashStore(), lambda: print("told", flush=True)):
    activity.now("F3.0 of stage 0")
    if sys.argv[2] == "waits":
        with activity.wait("stage 1"):
            print("ready", flush=True)
            time.sleep(60)
    time.sleep(60)
"""


def hanging(tmp_path, how):
    return subprocess.Popen([sys.executable, "-c", HANGING, str(tmp_path), how], stdout=subprocess.PIPE, text=True)


def test_worker_that_hangs_names_itself_and_what_it_does(tmp_path):
    process = hanging(tmp_path, "computes")
    assert process.wait(timeout=60) == watchdog.EXIT_HUNG
    assert re.fullmatch(r"hung: \d+ s in F3\.0 of stage 0\n", RunDirectory(tmp_path).failure_note(0).read_text())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_worker_that_waits_does_not_hang_and_ends_when_it_is_told_to(tmp_path, number):
    process = hanging(tmp_path, "waits")
    assert process.stdout.readline() == "ready\n"
    time.sleep(1.0)  # by now it would have hung
    assert process.poll() is None
    process.send_signal(number)
    assert process.communicate(timeout=60)[0] == "told\n"
    assert process.returncode == 128 + number
    assert RunDirectory(tmp_path).failure_notes() == {}


def test_failure_notes_are_kept_by_process(tmp_path):
    run = RunDirectory(tmp_path)
    assert run.failure_notes() == {}
    leave_failure_note(run, 10, "lost stage 2")
    leave_failure_note(run, 2, "hung")
    assert {process: note.read_text() for process, note in run.failure_notes().items()} == {
        10: "lost stage 2\n", 2: "hung\n",
    }  # fmt: skip
