"""What a worker's main thread says that it does."""

import os
import queue
import re
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from support.waiting import eventually
from torch.distributed import HashStore

from pipetrain.engine.errors import ExitCode
from pipetrain.runner.config.schema import LaunchConfig
from pipetrain.runner.launch import watchdog
from pipetrain.runner.launch.failure_note import failure_notes
from pipetrain.runner.launch.graceful_stop import order_stop
from pipetrain.runner.launch.watchdog import Activity, Watchdog
from pipetrain.runner.tracking.run_directory import RunDirectory


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


def test_every_change_is_counted():
    activity = Activity()
    changes = [activity.changes]
    with activity.wait("stage 1"):
        changes.append(activity.changes)
        with activity.compute("F3.1"):
            changes.append(activity.changes)
        changes.append(activity.changes)
    changes.append(activity.changes)
    activity.now("F4.0")
    changes.append(activity.changes)
    assert changes == sorted(set(changes))


def test_finished_worker_neither_starts_nor_waits():
    activity = Activity()
    activity.begin()
    activity.finish()
    assert (activity.starting, activity.waiting, activity.finished) == (False, False, True)


pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals are read from a pipe")


LIMITS = LaunchConfig(60.0, 60.0, 0.0)


def watching(run, process=0, publish=None):
    return Watchdog(process, 2, RunDirectory(run), LIMITS, publish)


def watch(run, store, process=0):
    watchdog = watching(run, process)
    watchdog.meet(store, RunDirectory(run))
    return watchdog


def test_worker_ends_some_time_after_another_of_its_machine(tmp_path, monkeypatch):
    with watch(tmp_path, HashStore()) as watchdog:
        pass
    lost, seconds = iter(([], [1], [], [1], [1], [1])), iter((1.0, 3.0, 18.0, 20.0))  # read only where one is lost
    monkeypatch.setattr(watchdog._clock, "look", lambda: next(seconds))
    peers = SimpleNamespace(lost=lambda: next(lost))
    assert [watchdog._misses_another(peers) for _ in range(6)] == [False] * 5 + [True]
    watchdog.activity.finish()
    assert not watchdog._misses_another(peers)


def test_wait_at_the_held_gate_is_no_hang(tmp_path):
    with watch(tmp_path, HashStore()) as watchdog:
        with watchdog.gate.waiting():
            assert watchdog.activity.waiting
        assert not watchdog.activity.waiting


def test_watchdog_gives_the_signals_back_when_it_closes(tmp_path):
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with watch(tmp_path, HashStore()):
        assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] != before
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
    assert signal.set_wakeup_fd(-1) == -1


def test_reports_of_stopping_workers_are_collected(tmp_path):
    store = HashStore()
    with watch(tmp_path, store) as first:
        first.reports.own = lambda: [{"stage": 0}]
        assert first.stop_others(seconds=0.05) == [[{"stage": 0}], None]
    second = watch(tmp_path, store, process=1)
    second.reports.own = lambda: [{"stage": 1}]
    with second:
        eventually(lambda: store.check(["pipetrain/report/1"]))
    with watch(tmp_path, store) as first:
        first.reports.own = lambda: [{"stage": 0}]
        assert first.stop_others(seconds=5.0) == [[{"stage": 0}], [{"stage": 1}]]


SIGNALED = """
import os, signal, sys, time
from torch.distributed import HashStore
from pipetrain.runner.config.schema import LaunchConfig
from pipetrain.runner.launch import watchdog
from pipetrain.runner.tracking.run_directory import RunDirectory
from pathlib import Path

number = getattr(signal, sys.argv[2])
seen = []
signal.signal(number, lambda *_: seen.append(number))
with watchdog.Watchdog(0, 1, RunDirectory(Path(sys.argv[1])), LaunchConfig(60.0, 60.0, 0.0)):
    os.kill(os.getpid(), number)
    time.sleep(1.0)  # longer than the watchdog's own look
assert seen == [number]
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGCHLD", "SIGUSR1"])
def test_signal_with_other_handler_reaches_it(tmp_path, name):
    done = subprocess.run([sys.executable, "-c", SIGNALED, str(tmp_path), name], timeout=60, check=False)
    assert done.returncode == 0


def test_worker_tells_at_once_that_it_has_begun(tmp_path, monkeypatch):
    monkeypatch.setattr(watchdog, "BEAT_SECONDS", 600.0)
    beats = queue.SimpleQueue()
    with watching(tmp_path, publish=beats.put) as watch:
        assert beats.get(timeout=10).starting
        watch.begin()
        assert not beats.get(timeout=10).starting


HANGING = """
import contextlib, sys, time
from pipetrain.runner.config.schema import LaunchConfig
from pipetrain.runner.launch import watchdog
from pipetrain.runner.tracking.run_directory import RunDirectory
from pathlib import Path

run = None if "unknown" in sys.argv else RunDirectory(Path(sys.argv[1]))
limits = LaunchConfig(0.3, 1.5, 0.0)
with watchdog.Watchdog(0, 1, run, limits, on_signal=lambda number: print("told", number, flush=True)) as watch:
    if "starts" not in sys.argv:
        watch.activity.begin()
    watch.activity.now("F3.0")
    with watch.activity.wait("stage 1") if "waits" in sys.argv else contextlib.nullcontext():
        print("ready", flush=True)
        if "moves" not in sys.argv:
            time.sleep(60)
        for part in range(20):
            watch.activity.now(f"evaluation {part} of 20")
            time.sleep(0.1)
"""


def hanging(tmp_path, *how):
    words = [sys.executable, "-c", HANGING, str(tmp_path), *how]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def note(tmp_path):
    return failure_notes(RunDirectory(tmp_path))[0].line


def test_worker_that_hangs_names_itself_and_what_it_does(tmp_path):
    assert hanging(tmp_path).wait(timeout=60) == watchdog.EXIT_HUNG
    assert re.fullmatch(r"hung: \d+ s in F3\.0", note(tmp_path))


def test_worker_that_hangs_has_how_the_run_ended_told(tmp_path):
    process = hanging(tmp_path)
    assert process.communicate(timeout=60)[0] == "ready\ntold 0\n"
    assert process.returncode == watchdog.EXIT_HUNG


def test_worker_hanging_before_run_directory_reports_itself(tmp_path):
    error = hanging(tmp_path, "starts", "unknown").communicate(timeout=60)[1]
    assert error == ("pipetrain: error: process 0 hung: not started after launch.start_timeout=1.5 s; it was F3.0\n")
    assert list(tmp_path.iterdir()) == []


def test_worker_that_hangs_ends_though_it_cannot_leave_a_note(tmp_path):
    (tmp_path / "logs").touch()
    assert hanging(tmp_path).wait(timeout=60) == watchdog.EXIT_HUNG


def test_worker_ends_by_signal_though_report_fails(tmp_path):
    script = HANGING.replace('print("told", number, flush=True)', "1 / 0").replace("0.3, 1.5", "60.0, 60.0")
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == ExitCode.PREEMPTED


def test_worker_that_goes_on_in_small_steps_does_not_hang(tmp_path):
    assert hanging(tmp_path, "moves").wait(timeout=60) == 0
    assert failure_notes(RunDirectory(tmp_path)) == {}


def test_starting_worker_may_exceed_hang_timeout_within_limit(tmp_path):
    began = time.monotonic()
    process = hanging(tmp_path, "starts")
    process.stdout.readline()
    assert process.wait(timeout=60) == watchdog.EXIT_HUNG
    assert time.monotonic() - began > 1.5
    assert note(tmp_path) == "hung: not started after launch.start_timeout=1.5 s; it was F3.0"


def test_worker_waiting_for_starting_one_leaves_report_to_it(tmp_path):
    process = hanging(tmp_path, "starts", "waits")
    process.stdout.readline()
    time.sleep(2.2)
    assert process.poll() is None
    assert process.wait(timeout=60) == watchdog.EXIT_HUNG


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_waiting_worker_does_not_hang_and_ends_when_told(tmp_path, number):
    process = hanging(tmp_path, "waits")
    assert process.stdout.readline() == "ready\n"
    time.sleep(1.0)  # by now it would have hung
    assert process.poll() is None
    process.send_signal(number)
    assert process.communicate(timeout=60)[0] == f"told {number}\n"
    assert process.returncode == (ExitCode.PREEMPTED if number == signal.SIGTERM else 128 + number)
    assert failure_notes(RunDirectory(tmp_path)) == {}


def test_signal_to_forked_child_does_not_end_worker(tmp_path):
    with watch(tmp_path, HashStore()):
        child = os.fork()
        if child == 0:
            time.sleep(60)
        os.kill(child, signal.SIGTERM)  # it may have forgotten its parent's pipe by now, or not
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
        time.sleep(1.0)


def test_worker_is_heard_of_before_its_first_line(tmp_path):
    heard = []
    with watching(tmp_path, 1, heard.append):
        assert [(beat.process, beat.pid, beat.starting) for beat in heard] == [(1, os.getpid(), True)]


def test_watchdog_tells_what_the_worker_does(tmp_path):
    heard = []
    with watching(tmp_path, 1, heard.append) as watchdog:
        watchdog.activity.begin()
        watchdog.activity.now("F3.0")
        eventually(lambda: heard and heard[-1].what == "F3.0")
        watchdog.activity.finish()
        eventually(lambda: heard[-1].finished)
    assert {(beat.process, beat.pid) for beat in heard} == {(1, os.getpid())}
    assert [beat.number for beat in heard] == list(range(1, len(heard) + 1))


def test_launcher_order_holds_gate_and_shuts_it_on_agreement(tmp_path):
    store = HashStore()
    watchdog = watching(tmp_path, publish=lambda _beat: None)
    watchdog.meet(store, RunDirectory(tmp_path))
    with watchdog:
        assert watchdog.gate.admits()
        order_stop(store)
        eventually(lambda: store.check(["pipetrain/begun/0/0"]))
        store.set("pipetrain/begun/0/1", "3")
        assert [watchdog.gate.admits() for _ in range(3)] == [True, True, False]


ORDERED = """
import os, signal, sys, time
from pathlib import Path
from torch.distributed import HashStore
from pipetrain.runner.config.schema import LaunchConfig
from pipetrain.runner.launch import graceful_stop, watchdog
from pipetrain.runner.tracking.run_directory import RunDirectory

signal.signal(signal.SIGUSR1, lambda *_: None)
run, store = RunDirectory(Path(sys.argv[1])), HashStore()
watch = watchdog.Watchdog(0, 1, run, LaunchConfig(60.0, 60.0, 0.0), lambda _beat: None)
watch.meet(store, run)
with watch:
    for number in (signal.SIGINT, signal.SIGUSR1):
        os.kill(os.getpid(), number)
        time.sleep(0.2)
    if sys.argv[2] == "ordered":
        graceful_stop.order_stop(store)
    time.sleep(4.0)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("launcher", "code"), [("ordered", 0), ("silent", 128 + signal.SIGINT)])
def test_signal_ends_worker_unless_launcher_stops_the_run(tmp_path, launcher, code):
    done = subprocess.run([sys.executable, "-c", ORDERED, str(tmp_path), launcher], timeout=60, check=False)
    assert done.returncode == code


def test_worker_that_finishes_is_heard_of_once_more(tmp_path):
    heard = []
    with watching(tmp_path, publish=heard.append) as watchdog:
        watchdog.finish()
        assert heard[-1].finished


LEFT_TO_STOP = """
import sys, time
from pathlib import Path
from torch.distributed import HashStore
from pipetrain.runner.config.schema import LaunchConfig
from pipetrain.runner.launch import watchdog
from pipetrain.runner.tracking.run_directory import RunDirectory

run = RunDirectory(Path(sys.argv[1]))
limits = LaunchConfig(60.0, 60.0, float(sys.argv[2]))
with watchdog.Watchdog(0, 1, run, limits, on_signal=lambda number: print("told", number, flush=True)) as watch:
    watch.meet(HashStore(), run)
    watch.activity.begin()
    print("ready", flush=True)
    while watch.gate.admits():
        time.sleep(0.05)
    print("drained", flush=True)
    time.sleep(60 if sys.argv[3] == "late" else 0)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seconds", "when", "said", "code"),
    [("60", "soon", "drained\n", 0), ("1", "late", "drained\ntold 15\n", 75), ("0", "soon", "told 15\n", 75)],
)
def test_outer_launcher_signal_stops_the_run_in_time(tmp_path, seconds, when, said, code):
    words = [sys.executable, "-c", LEFT_TO_STOP, str(tmp_path), seconds, when]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=60)[0] == said
    assert process.returncode == code
