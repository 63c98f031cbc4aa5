"""The monitor of the workers: what it sees of those that cannot report it themselves."""

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from support.sleepers import beat_of, sleeper
from support.worker_pool import job
from torch.distributed import HashStore

from pipetrain.engine.errors import LostStageError, RunError
from pipetrain.runner.launch import monitor, process_exit
from pipetrain.runner.launch.failure_note import FailureKind, FailureNote, failure_notes
from pipetrain.runner.launch.monitor import (
    Heartbeat,
    LauncherMonitor,
    PeerMonitor,
    SuspendAwareClock,
    UnreportedWorkerFailure,
    birth_and_parent,
    process_namespace,
)
from pipetrain.runner.tracking.run_directory import RunDirectory


def test_pause_between_two_looks_counts_only_so_much(monkeypatch):
    times = itertools.chain([100.0, 100.5, 100.75, 4000.0, 4000.5])
    monkeypatch.setattr(time, "monotonic", lambda: next(times))
    clock = SuspendAwareClock(most=2.0)
    assert [clock.look() for _ in range(4)] == [0.5, 0.75, 2.75, 3.25]


def look_at(monkeypatch, watching, seconds, *beats):
    """Has the monitor look at a time, after these heartbeats."""
    publish(watching, *beats)
    monkeypatch.setattr(SuspendAwareClock, "look", lambda _self: seconds)
    watching.look()


class Watching(LauncherMonitor):
    """The launcher's monitor without its thread; `killed` has the workers that it has killed."""

    def __init__(self, run, processes, hang_timeout):
        self.killed = []
        run.path.mkdir(exist_ok=True)
        made = job(run.path, "pipedream", max(processes) + 1, launch={"hang_timeout": hang_timeout})
        super().__init__(made, HashStore(), self.killed.append)
        self._processes = processes


def publish(watching, *beats):
    for beat in beats:
        beat.publish(watching._store)


def test_silence_and_idleness_count_from_newest_heartbeat(tmp_path, monkeypatch):
    watching = Watching(RunDirectory(tmp_path), [1], 60.0)
    for seconds, number, changes in ((1.0, 7, 5), (2.0, 7, 5), (3.0, 8, 6), (4.0, 9, 6)):
        look_at(monkeypatch, watching, seconds, beat_of(1, os.getpid(), number, changes=changes))
    look_at(monkeypatch, watching, 6.0)
    assert watching._latest[1].number == 9
    assert (watching._heard_at[1], watching._changed_at[1]) == (4.0, 3.0)


def test_local_worker_is_gone_when_its_process_has_ended():
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert beat_of(1, ended.pid).is_gone
    assert not Heartbeat(1, ended.pid, "elsewhere", 1).is_gone
    assert not beat_of(1, os.getpid()).is_gone


def test_worker_whose_pid_was_reused_by_another_user_is_gone(monkeypatch):
    def refused(_pid, _number):
        raise PermissionError

    monkeypatch.setattr(os, "kill", refused)
    assert Heartbeat(0, os.getpid(), process_namespace(), 1).is_gone


def test_silent_worker_is_named_and_killed(tmp_path, monkeypatch):
    watching = Watching(RunDirectory(tmp_path), [1], 1.0)
    look_at(monkeypatch, watching, 1.0, beat_of(1, os.getpid()))
    look_at(monkeypatch, watching, 2.1)
    assert watching.killed == [1]
    assert failure_notes(RunDirectory(tmp_path)) == {1: FailureNote(FailureKind.HUNG, "no sign of life for 1 s")}


def test_silent_worker_of_other_machine_is_unreachable(tmp_path, monkeypatch):
    watching = PeerMonitor(0, 2, HashStore(), RunDirectory(tmp_path), 1.0)
    look_at(monkeypatch, watching, 1.0, Heartbeat(1, os.getpid(), "elsewhere", 1))
    assert not watching.unreachable
    look_at(monkeypatch, watching, 2.1)
    assert watching.unreachable
    assert failure_notes(RunDirectory(tmp_path))[1].kind is FailureKind.HUNG


def test_worker_whose_beat_goes_on_is_left_alone(tmp_path, monkeypatch):
    watching = Watching(RunDirectory(tmp_path), [0, 1], 1.0)
    for number in range(20):
        look_at(monkeypatch, watching, number / 2, *(beat_of(p, os.getpid(), number) for p in range(2)))
    assert failure_notes(RunDirectory(tmp_path)) == {}


@pytest.fixture
def monitoring(tmp_path):
    """Starts the launcher's monitor of two workers, with these limits."""
    open_ones = []
    (tmp_path / "run").mkdir()

    def start(hang_timeout=60.0, start_timeout=60.0):
        limits = {"hang_timeout": hang_timeout, "start_timeout": start_timeout}
        made = job(tmp_path / "run", "pipedream", 2, launch=limits)
        workers = {}
        open_ones.append(LauncherMonitor(made, HashStore(), lambda process: workers[process].kill()).__enter__())
        open_ones[-1].workers = workers
        return open_ones[-1]

    yield start
    for each in open_ones:
        each.__exit__(None, None, None)


def missing(watching, within=20.0):
    """The process that is missed, and how it failed."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        try:
            watching.check()
        except UnreportedWorkerFailure as error:
            return error.process, str(error)
        time.sleep(0.05)
    raise AssertionError("nobody is missing")


def test_worker_that_never_starts_is_missed(monitoring):
    watching = monitoring(start_timeout=0.7)
    publish(watching, beat_of(0, os.getpid(), waiting=True))
    assert missing(watching) == (1, "did not start within launch.start_timeout=0.7 seconds")


def test_worker_leaving_with_0_before_finishing_is_missed(monitoring):
    watching = monitoring()
    publish(watching, beat_of(0, os.getpid(), finished=True), beat_of(1, os.getpid(), what="F3.0"))
    watching.check_finished(0)
    with pytest.raises(UnreportedWorkerFailure, match="failed: it ended with exit code 0 before the run did") as caught:
        watching.check_finished(1)
    assert caught.value.process == 1


def test_workers_that_all_wait_for_each_other_hang(monitoring):
    watching, began, caught = monitoring(hang_timeout=1.0), time.monotonic(), None
    for number in range(100):
        publish(watching, *(beat_of(p, os.getpid(), number, what=f"F{p}.0, waiting", waiting=True) for p in (0, 1)))
        time.sleep(0.1)
        try:
            watching.check()
        except UnreportedWorkerFailure as error:
            caught = error
            break
    assert str(caught) == "hung: 1 s in F0.0, waiting, and every other stage waits as well: process 1 in F1.0, waiting"
    assert time.monotonic() - began < 8


def test_one_that_waits_for_another_that_computes_does_not_hang(monitoring):
    watching = monitoring(hang_timeout=1.0)
    for number in range(25):
        publish(watching, beat_of(0, os.getpid(), number, waiting=True), beat_of(1, os.getpid(), number))
        time.sleep(0.1)
        watching.check()


def test_process_that_stays_after_the_end_of_the_run_is_ended(monitoring, monkeypatch):
    monkeypatch.setattr(monitor, "_ENDING_SECONDS", 0.5)
    with sleeper() as one, sleeper() as other:
        watching = monitoring()
        watching.workers.update({0: one, 1: other})
        publish(watching, beat_of(0, one.pid, finished=True), beat_of(1, other.pid, finished=True))
        assert one.wait(timeout=20) == other.wait(timeout=20) == -signal.SIGKILL


def test_stop_order_reaches_workers_once_all_train(monitoring):
    watching = monitoring()
    assert not watching.break_off(), "nobody was heard of"
    publish(watching, beat_of(0, os.getpid()), beat_of(1, os.getpid(), starting=True))
    assert not watching.break_off()
    assert not watching._store.check(["pipetrain/break-off"])
    publish(watching, beat_of(1, os.getpid(), number=2))
    assert watching.break_off()
    assert watching._store.check(["pipetrain/break-off"])


def test_failing_monitor_thread_ends_the_run(monitoring, monkeypatch):
    def fails(_store, _process):
        raise ZeroDivisionError("no reason")

    monkeypatch.setattr(Heartbeat, "read", fails)
    watching = monitoring()
    watching._thread.join(timeout=20)
    with pytest.raises(RunError, match="the thread that monitors the workers failed: ZeroDivisionError"):
        watching.check()


FOREIGN = ["", "no heartbeat", "[]", "{}", '{"process": 0, "pid": "x", "host": "", "number": 1}', "null"]


@pytest.mark.parametrize("entry", FOREIGN)
def test_entry_that_is_no_heartbeat_is_neither_life_nor_silence(tmp_path, monkeypatch, entry):
    watching = Watching(RunDirectory(tmp_path), [0], 1.0)
    watching._store.set("pipetrain/beat/0", entry)
    look_at(monkeypatch, watching, 1.0)
    assert watching._latest == {}
    look_at(monkeypatch, watching, 2.0, beat_of(0, os.getpid(), number=5))
    watching._store.set("pipetrain/beat/0", entry)
    look_at(monkeypatch, watching, 9.0)
    assert (watching._latest[0].number, watching.killed) == (5, [])


@pytest.mark.parametrize("forged", [{"number": 4}, {"number": 9, "pid": 1}], ids=["older", "other process"])
def test_heartbeat_that_the_worker_cannot_have_left_is_ignored(tmp_path, monkeypatch, forged):
    watching = Watching(RunDirectory(tmp_path), [0], 1.0)
    own = beat_of(0, os.getpid(), number=5)
    look_at(monkeypatch, watching, 2.0, own)
    look_at(monkeypatch, watching, 9.0, replace(own, finished=True, **forged))
    assert (watching._latest[0], watching.killed) == (own, [])
    look_at(monkeypatch, watching, 10.0, beat_of(0, os.getpid(), number=6))
    look_at(monkeypatch, watching, 12.0)
    assert watching.killed == [0]


def test_launcher_kills_its_worker_and_not_what_a_heartbeat_names(monitoring, monkeypatch):
    monkeypatch.setattr(monitor, "_ENDING_SECONDS", 0.5)
    with sleeper() as worker, sleeper() as bystander:
        watching = monitoring()
        watching.workers.update({0: worker, 1: worker})
        publish(watching, *(beat_of(process, bystander.pid, finished=True) for process in (0, 1)))
        assert worker.wait(timeout=20) == -signal.SIGKILL
        assert bystander.poll() is None


@pytest.mark.parametrize("sibling", [True, False])
def test_peer_kills_only_what_its_own_launcher_has_started(tmp_path, monkeypatch, sibling):
    watching = peers(tmp_path, HashStore())
    with sleeper() as process:
        born, parent = birth_and_parent(process.pid)
        assert parent == os.getpid()
        if sibling:
            monkeypatch.setattr(os, "getppid", lambda: parent)
        look_at(monkeypatch, watching, 1.0, beat_of(1, process.pid, born=born))
        look_at(monkeypatch, watching, 62.0)
        assert watching.unreachable is not sibling
        assert (process.poll() is None) is not sibling or process.wait(timeout=20) == -signal.SIGKILL


def test_peer_does_not_kill_process_that_began_at_another_time(tmp_path, monkeypatch):
    watching = peers(tmp_path, HashStore())
    with sleeper() as process:
        born, parent = birth_and_parent(process.pid)
        monkeypatch.setattr(os, "getppid", lambda: parent)
        assert not watching._kill(beat_of(1, process.pid, born=born - 1))
        assert not watching._kill(beat_of(1, process.pid))
        assert process.poll() is None


def peers(run, store, process=0):
    return PeerMonitor(process, 2, store, RunDirectory(run), 60.0)


def test_worker_killed_after_first_meeting_is_lost(tmp_path):
    store = HashStore()
    one, other = peers(tmp_path, store), peers(tmp_path, store, process=1)
    with sleeper() as killed:
        pairs = [(one, beat_of(0, os.getpid())), (other, beat_of(1, killed.pid))]
        with ThreadPoolExecutor() as both:
            list(both.map(lambda pair: pair[0].meet(pair[1]), pairs))
        assert one.lost() == []
        killed.kill()
        killed.wait()
        assert one.lost() == [1]
    one.close()
    other.close()


def test_process_with_the_store_outlasts_the_others(tmp_path):
    store = HashStore()
    one, other = peers(tmp_path, store), peers(tmp_path, store, process=1)
    with sleeper() as process, ThreadPoolExecutor() as apart:
        other.exchange(beat_of(1, process.pid, number=1))
        one.exchange(beat_of(0, os.getpid(), finished=True))
        waits = apart.submit(one.outlast)
        time.sleep(0.5)
        assert not waits.done()
        other.exchange(beat_of(1, process.pid, number=2, finished=True))
        one.exchange(beat_of(0, os.getpid(), number=2, finished=True))
        waits.result(timeout=10)


@pytest.mark.parametrize("waits", [True, False])
def test_peers_that_all_wait_for_each_other_are_deadlocked(tmp_path, monkeypatch, waits):
    store = HashStore()
    both = peers(tmp_path, store), peers(tmp_path, store, process=1)
    for number in range(63):
        monkeypatch.setattr(SuspendAwareClock, "look", lambda _self, now=float(number): now)
        for process, each in enumerate(both):
            waiting = waits or process == 0
            each.exchange(beat_of(process, os.getpid(), number, what=f"F{process}.0, waiting", waiting=waiting))
    assert [each.deadlocked for each in both] == [waits, waits]
    line = "hung: 60 s in F0.0, waiting, and every other stage waits as well: process 1 in F1.0, waiting"
    assert both[1].failure(named) == (f"stage 0 {line}" if waits else None)


def named(process):
    return f"stage {process}"


def test_failure_note_outranks_a_lost_worker(tmp_path):
    one = peers(tmp_path, HashStore())
    assert one.failure(named) is None
    FailureNote(FailureKind.LOST, str(LostStageError(1))).leave(RunDirectory(tmp_path), 0)
    assert one.failure(named) is None
    FailureNote(FailureKind.FAILED, "KeyError: 'label'", "Traceback").leave(RunDirectory(tmp_path), 1)
    assert one.failure(named) == "stage 1 failed: KeyError: 'label'"


def test_first_process_to_ask_is_told_so_and_no_other(tmp_path):
    store = HashStore()
    assert [peers(tmp_path, store).is_first() for _ in range(3)] == [True, False, False]


def test_last_word_of_gone_worker_counts_if_read_late(tmp_path):
    store = HashStore()
    one, other = peers(tmp_path, store), peers(tmp_path, store, process=1)
    with sleeper() as process:
        other.exchange(beat_of(1, process.pid, number=1))
        one.exchange(beat_of(0, os.getpid()))
        other.exchange(beat_of(1, process.pid, number=2, signaled=True))
    assert one.failure(named) is None


@pytest.mark.parametrize(("activity", "lost"), [({}, [1]), ({"finished": True}, []), ({"signaled": True}, [])])
def test_only_worker_that_ended_unasked_is_lost(tmp_path, activity, lost):
    store = HashStore()
    one, other = peers(tmp_path, store), peers(tmp_path, store, process=1)
    with sleeper() as process:
        other.exchange(beat_of(1, process.pid, **activity))
        one.exchange(beat_of(0, os.getpid()))
        assert one.lost() == []
    assert one.lost() == lost
    assert one.failure(named) == ("stage 1 failed: its process ended without a word" if lost else None)


@pytest.fixture
def ended(monkeypatch):
    """The exit codes of this process, which does not end."""
    codes, told = [], threading.Event()

    def end(code):
        codes.append(code)
        told.set()

    monkeypatch.setattr(process_exit, "kill_tree_and_exit", end)
    return codes, told


def test_worker_without_answers_after_cut_link_ends(tmp_path, ended, capsys):
    codes, told = ended
    watching = PeerMonitor(0, 1, HashStore(), RunDirectory(tmp_path), 0.1)
    watching.meet(beat_of(0, os.getpid()))
    assert told.wait(20)
    watching.close()
    assert codes == [process_exit.EXIT_LOST]
    assert "process 0 has not reached the machine of the first process for 0.1 s" in capsys.readouterr().err
    assert failure_notes(RunDirectory(tmp_path))[0].kind is FailureKind.LOST


@pytest.mark.parametrize("finished", [False, True])
def test_worker_that_gets_answers_or_has_finished_goes_on(tmp_path, ended, finished):
    _, told = ended
    watching = PeerMonitor(0, 1, HashStore(), RunDirectory(tmp_path), 0.8)
    watching.meet(beat_of(0, os.getpid()))
    for _ in range(8):
        watching.exchange(beat_of(0, os.getpid(), finished=finished))
        assert not told.wait(0.2)
    watching.close()
