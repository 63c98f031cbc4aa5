"""The watchdog of a worker: signals, hangs, heartbeats, drains."""

import contextlib
import os
import queue
import re
import signal
import sys
import time
from types import SimpleNamespace

import pytest
from support.waiting import eventually
from torch.distributed import HashStore

from pipetrain.engine.errors import ExitCode
from pipetrain.runner.config.schema import LaunchConfig
from pipetrain.runner.launch import process_exit, watchdog
from pipetrain.runner.launch.consensus import order_stop
from pipetrain.runner.launch.failure_note import failure_notes
from pipetrain.runner.launch.watchdog import Watchdog
from pipetrain.runner.tracking.run_directory import RunDirectory

LIMITS = LaunchConfig(60.0, 60.0, 0.0)
SOON = LaunchConfig(hang_timeout=0.2, start_timeout=0.8, stop_timeout=0.0)


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch):
    monkeypatch.setattr(watchdog, "BEAT_SECONDS", 0.02)


@pytest.fixture
def run(tmp_path):
    return RunDirectory(tmp_path)


def watching(run, process=0, publish=None, store=None):
    made = Watchdog(process, 2, run, LIMITS, publish)
    if store is not None:
        made.meet(store, run)
    return made


def test_worker_ends_some_time_after_another_of_its_machine(run, monkeypatch):
    clock, codes, looks = SimpleNamespace(seconds=0.0), [], []
    clock.look = lambda: clock.seconds
    monkeypatch.setattr(watchdog, "SuspendAwareClock", lambda: clock)
    monkeypatch.setattr(process_exit, "kill_tree_and_exit", codes.append)
    peers = SimpleNamespace(unreachable=False, deadlocked=False, missing=[], close=lambda: None)
    peers.lost = lambda: looks.append(None) or peers.missing

    def seen(seconds, missing):
        clock.seconds, peers.missing, before = seconds, missing, len(looks)
        eventually(lambda: len(looks) >= before + 3)
        return codes[:1]

    with watching(run) as dog:
        dog.activity.begin()
        dog.peers = peers
        assert seen(1.0, [1]) == seen(3.0, []) == seen(20.0, [1]) == seen(35.0, [1]) == []
        assert seen(37.0, [1]) == [process_exit.EXIT_LOST]


def test_wait_at_the_held_gate_is_no_hang(run):
    with watching(run) as dog:
        with dog.gate.waiting():
            assert dog.activity.waiting
        assert not dog.activity.waiting


def test_watchdog_gives_the_signals_back_when_it_closes(run):
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with watching(run):
        assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] != before
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
    assert signal.set_wakeup_fd(-1) == -1


def test_reports_of_stopping_workers_are_collected(run):
    store = HashStore()
    for process in (1, 0):
        with watching(run, process, store=store) as dog:
            dog.reports.own = lambda process=process: [{"stage": process}]
            if process == 1:
                assert dog.stop_others(seconds=0.05) == [None, [{"stage": 1}]]
            else:
                assert dog.stop_others(seconds=5.0) == [[{"stage": 0}], [{"stage": 1}]]


def test_worker_is_heard_of_at_once_when_it_starts_begins_and_finishes(run, monkeypatch):
    monkeypatch.setattr(watchdog, "BEAT_SECONDS", 600.0)
    beats = queue.SimpleQueue()
    with watching(run, publish=beats.put) as dog:
        first = beats.get(timeout=10)
        assert (first.process, first.pid, first.activity.starting) == (0, os.getpid(), True)
        dog.begin()
        assert not beats.get(timeout=10).activity.starting
        dog.finish()
        assert beats.get(timeout=10).activity.finished


def test_heartbeats_say_what_the_worker_does(run):
    heard = []
    with watching(run, 1, heard.append) as dog:
        dog.activity.now("F3.0")
        eventually(lambda: heard[-1].activity.what == "F3.0")
    assert {(beat.process, beat.pid) for beat in heard} == {(1, os.getpid())}
    assert [beat.number for beat in heard] == list(range(1, len(heard) + 1))


def test_launcher_order_holds_gate_and_shuts_it_on_agreement(run):
    store = HashStore()
    with watching(run, publish=lambda _beat: None, store=store) as dog:
        assert dog.gate.admits()
        order_stop(store)
        eventually(lambda: store.check(["pipetrain/begun/0/0"]))
        store.set("pipetrain/begun/0/1", "3")
        assert [dog.gate.admits() for _ in range(3)] == [True, True, False]


def test_quick_rounds_of_a_drain_send_no_more_heartbeats(run, monkeypatch):
    monkeypatch.setattr(watchdog, "BEAT_SECONDS", 0.5)
    store, heard = HashStore(), []
    order_stop(store)
    with watching(run, publish=heard.append, store=store):
        eventually(lambda: store.check(["pipetrain/begun/0/0"]))
        before = len(heard)
        time.sleep(1.0)
        assert 1 <= len(heard) - before <= 3


def test_signal_to_forked_child_does_not_end_worker(run):
    with watching(run):
        child = os.fork()
        if child == 0:
            time.sleep(60)
        os.kill(child, signal.SIGTERM)  # it may have forgotten its parent's pipe by now, or not
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
        time.sleep(0.1)


class Worker:
    """A forked process that calls `body` with its watchdog; it prints the signal that it is to report."""

    def __init__(self, body, run, limits=LIMITS, publish=None, on_signal=lambda number: print("told", number)):
        reads, writes = os.pipe()
        self.pid = os.fork()
        if self.pid:
            os.close(writes)
            self.out = os.fdopen(reads)
            return
        code = 1
        try:
            sys.stdout = sys.stderr = os.fdopen(writes, "w", buffering=1)
            with Watchdog(0, 1, run, limits, publish, on_signal) as dog:
                body(dog)
            code = 0
        finally:
            os._exit(code)

    def send(self, number):
        os.kill(self.pid, number)

    def end(self):
        """Its exit code, and what it printed."""
        said = self.out.read()
        self.out.close()
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]), said


def note(run):
    return failure_notes(run)[0].line


def hangs(dog, *, starts=False, waits=False):
    if not starts:
        dog.activity.begin()
    dog.activity.now("F3.0")
    with dog.activity.wait("stage 1") if waits else contextlib.nullcontext():
        print("ready")
        time.sleep(60)


def test_worker_that_hangs_names_itself_and_reports_the_end(run):
    assert Worker(hangs, run, SOON).end() == (watchdog.EXIT_HUNG, "ready\ntold 0\n")
    assert re.fullmatch(r"hung: \d+ s in F3\.0", note(run))


def test_worker_hanging_before_run_directory_reports_itself(tmp_path):
    code, said = Worker(lambda dog: hangs(dog, starts=True), None, SOON).end()
    assert code == watchdog.EXIT_HUNG
    assert "pipetrain: error: process 0 hung: not started after launch.start_timeout=0.8 s" in said
    assert list(tmp_path.iterdir()) == []


def test_worker_that_hangs_ends_though_it_cannot_leave_a_note(run):
    run.logs.touch()
    assert Worker(hangs, run, SOON).end()[0] == watchdog.EXIT_HUNG


def test_worker_ends_by_signal_though_report_fails(run):
    worker = Worker(hangs, run, on_signal=lambda number: number / 0)
    assert worker.out.readline() == "ready\n"
    worker.send(signal.SIGTERM)
    assert worker.end()[0] == ExitCode.PREEMPTED


def test_worker_that_goes_on_in_small_steps_does_not_hang(run):
    def moves(dog):
        dog.activity.begin()
        for part in range(12):
            dog.activity.now(f"evaluation {part} of 12")
            time.sleep(0.05)

    assert Worker(moves, run, LaunchConfig(0.4, 60.0, 0.0)).end() == (0, "")
    assert failure_notes(run) == {}


def test_starting_worker_may_exceed_hang_timeout_within_limit(run):
    began = time.monotonic()
    assert Worker(lambda dog: hangs(dog, starts=True), run, SOON).end()[0] == watchdog.EXIT_HUNG
    assert time.monotonic() - began > SOON.start_timeout
    assert note(run) == "hung: not started after launch.start_timeout=0.8 s; it was F3.0"


def test_worker_waiting_for_starting_one_leaves_report_to_it(run):
    began = time.monotonic()
    worker = Worker(lambda dog: hangs(dog, starts=True, waits=True), run, SOON)
    assert worker.end()[0] == watchdog.EXIT_HUNG
    assert time.monotonic() - began > 2 * SOON.start_timeout


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_waiting_worker_does_not_hang_and_ends_when_told(run, number):
    worker = Worker(lambda dog: hangs(dog, waits=True), run, SOON)
    assert worker.out.readline() == "ready\n"
    time.sleep(3 * SOON.hang_timeout)
    worker.send(number)
    code = ExitCode.PREEMPTED if number == signal.SIGTERM else 128 + number
    assert worker.end() == (code, f"told {number}\n")
    assert failure_notes(run) == {}


@pytest.mark.parametrize("number", [signal.SIGCHLD, signal.SIGUSR1])
def test_signal_with_other_handler_reaches_it(run, number):
    seen = []

    def signaled(_dog):
        os.kill(os.getpid(), number)
        time.sleep(0.2)
        print(seen)

    before = signal.signal(number, lambda *_: seen.append("seen"))
    try:
        assert Worker(signaled, run).end() == (0, "['seen']\n")
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize(("ordered", "code"), [(True, 0), (False, 128 + signal.SIGINT)])
def test_signal_ends_worker_unless_launcher_stops_the_run(run, monkeypatch, ordered, code):
    monkeypatch.setattr(watchdog, "_ORDER_SECONDS", 0.5)

    def signaled(dog):
        store = HashStore()
        dog.meet(store, run)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGUSR1)
        if ordered:
            order_stop(store)
        time.sleep(1.0)

    assert Worker(signaled, run, publish=lambda _beat: None).end()[0] == code


@pytest.mark.parametrize(
    ("seconds", "late", "said", "code"),
    [(60.0, False, "drained\n", 0), (0.3, True, "drained\ntold 15\n", 75), (0.0, False, "told 15\n", 75)],
)
def test_outer_launcher_signal_stops_the_run_in_time(run, seconds, late, said, code):
    def trains(dog):
        dog.meet(HashStore(), run)
        dog.activity.begin()
        print("ready")
        while dog.gate.admits():
            time.sleep(0.01)
        print("drained")
        time.sleep(60 if late else 0)

    worker = Worker(trains, run, LaunchConfig(60.0, 60.0, seconds))
    assert worker.out.readline() == "ready\n"
    worker.send(signal.SIGTERM)
    assert worker.end() == (code, said)
