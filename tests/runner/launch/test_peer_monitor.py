"""The monitors of workers under an outer launcher: what each sees of the rest, and what it asks of the store."""

import json
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from counting_store import CountingStore
from support.sleepers import beat_of, sleeper
from torch.distributed import HashStore

from pipetrain.engine.errors import LostStageError
from pipetrain.runner.launch import peer_monitor, process_exit
from pipetrain.runner.launch.failure_note import FailureKind, FailureNote, failure_notes
from pipetrain.runner.launch.heartbeat import Heartbeat, birth_and_parent
from pipetrain.runner.launch.peer_monitor import PeerMonitor

HERE = os.getpid()


@pytest.fixture(autouse=True)
def clock(clock):
    """The clock of every monitor of this file."""
    return clock


@pytest.fixture
def peers(run, store):
    """The monitors of two workers under an outer launcher."""
    return [PeerMonitor(process, 2, store, run, 60.0) for process in (0, 1)]


def named(process):
    return f"stage {process}"


@pytest.mark.parametrize(
    ("sibling", "born", "killed"),
    [(True, 0, True), (False, 0, False), (True, -1, False), (True, None, False)],
    ids=["its own", "of another launcher", "began before", "unknown"],
)
def test_peer_kills_only_what_its_own_launcher_has_started(peers, store, clock, monkeypatch, sibling, born, killed):
    with sleeper() as process:
        began, parent = birth_and_parent(process.pid)
        assert parent == HERE
        if sibling:
            monkeypatch.setattr(os, "getppid", lambda: parent)
        beat_of(1, process.pid, born=0 if born is None else began + born).publish(store)
        peers[0].look()
        clock.seconds = 61.0
        peers[0].look()
        assert peers[0].unreachable is not killed
        assert (process.wait(timeout=20) == -signal.SIGKILL) if killed else process.poll() is None


def test_worker_killed_after_first_meeting_is_lost(peers):
    with sleeper() as killed:
        pairs = zip(peers, (beat_of(0, HERE), beat_of(1, killed.pid)), strict=True)
        with ThreadPoolExecutor() as both:
            list(both.map(lambda pair: pair[0].meet(pair[1]), pairs))
        assert peers[0].lost() == []
    assert peers[0].lost() == [1]
    for each in peers:
        each.close()


def test_process_with_the_store_outlasts_the_others(peers):
    one, other = peers
    with sleeper() as process, ThreadPoolExecutor() as apart:
        other.exchange(beat_of(1, process.pid, number=1))
        one.exchange(beat_of(0, HERE, finished=True))
        waits = apart.submit(one.outlast)
        time.sleep(0.2)
        assert not waits.done()
        other.exchange(beat_of(1, process.pid, number=2, finished=True))
        one.exchange(beat_of(0, HERE, number=2, finished=True))
        waits.result(timeout=10)


@pytest.mark.parametrize("waits", [True, False])
def test_peers_that_all_wait_for_each_other_are_deadlocked(peers, clock, waits):
    for number in range(63):
        clock.seconds = float(number)
        for process, each in enumerate(peers):
            waiting = waits or process == 0
            each.exchange(beat_of(process, HERE, number, what=f"F{process}.0, waiting", waiting=waiting))
    assert [each.deadlocked for each in peers] == [waits, waits]
    line = "hung: 60 s in F0.0, waiting, and every other stage waits as well: process 1 in F1.0, waiting"
    assert peers[1].failure(named) == (f"stage 0 {line}" if waits else None)


def test_failure_note_outranks_a_lost_worker(peers, run):
    assert peers[0].failure(named) is None
    FailureNote(FailureKind.LOST, str(LostStageError(1))).leave(run, 0)
    assert peers[0].failure(named) is None
    FailureNote(FailureKind.FAILED, "KeyError: 'label'", "Traceback").leave(run, 1)
    assert peers[0].failure(named) == "stage 1 failed: KeyError: 'label'"


def test_only_the_first_process_to_ask_is_first(peers):
    assert [each.is_first() for each in (*peers, peers[0])] == [True, False, False]


@pytest.mark.parametrize(
    ("activity", "last", "lost"),
    [({}, None, [1]), ({"finished": True}, None, []), ({"signaled": True}, None, []), ({}, {"signaled": True}, [])],
    ids=["without a word", "finished", "signaled", "last word read late"],
)
def test_only_worker_that_ended_unasked_is_lost(peers, store, activity, last, lost):
    one, other = peers
    with sleeper() as process:
        other.exchange(beat_of(1, process.pid, **activity))
        one.exchange(beat_of(0, HERE))
        assert one.lost() == []
        if last is not None:
            beat_of(1, process.pid, number=2, **last).publish(store)
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
    monkeypatch.setattr(peer_monitor, "BEAT_SECONDS", 0.02)
    return codes, told


def test_worker_without_answers_after_cut_link_ends(run, ended, capsys):
    codes, told = ended
    watching = PeerMonitor(0, 1, HashStore(), run, 0.1)
    watching.meet(beat_of(0, HERE))
    assert told.wait(20)
    watching.close()
    assert codes[0] == process_exit.EXIT_LOST
    assert "process 0 has not reached the machine of the first process" in capsys.readouterr().err
    assert failure_notes(run)[0].kind is FailureKind.LOST


@pytest.mark.parametrize("finished", [False, True])
def test_worker_that_gets_answers_or_has_finished_goes_on(run, ended, finished):
    _, told = ended
    watching = PeerMonitor(0, 1, HashStore(), run, 0.4)
    watching.meet(beat_of(0, HERE))
    for _ in range(8):
        watching.exchange(beat_of(0, HERE, finished=finished))
        assert not told.wait(0.1)
    watching.close()


def met(count, store, run, beat):
    """The monitors of all workers, which have met."""
    peers = [PeerMonitor(process, count, store, run, 60.0) for process in range(count)]
    for process in range(1, count):
        beat(process, 0).publish(store)
    for process, each in enumerate(peers):
        each.meet(beat(process, 0))
        each.close()
    return peers


@pytest.mark.parametrize("count", [2, 64, 512])
def test_requests_of_a_beat_do_not_grow_with_workers(run, count):
    store = CountingStore(HashStore())

    def beat(process, number):
        return Heartbeat(process, HERE, f"machine {process // 8}", number)

    peers = met(count, store, run, beat)
    meeting = store.taken()
    assert meeting.requests <= 8 * count
    keys = meeting.keys
    for number in range(1, 4):
        for process, each in enumerate(peers):
            each.exchange(beat(process, number))
            asked = store.taken()
            assert asked.requests <= 4
            keys += asked.keys
    assert keys <= 40 * count


def test_first_process_tells_the_rest_of_a_silent_one_in_the_same_beat(run, clock, store):
    def beat(process, number):
        return Heartbeat(process, HERE, f"machine {process}", number)

    peers = met(4, store, run, beat)
    for number in range(1, 63):
        clock.seconds = float(number)
        for process in (0, 1, 2):
            peers[process].exchange(beat(process, number))
        assert {each.unreachable for each in peers[:3]} == {number > 60}
    assert failure_notes(run) == {3: FailureNote(FailureKind.HUNG, "no sign of life for 60 s")}


@pytest.mark.parametrize("finished", [False, True])
def test_first_process_whose_digest_stays_the_same_is_silent_unless_finished(run, clock, store, finished):
    def beat(process, number, **activity):
        return replace(beat_of(process, HERE, number, **activity), host=f"machine {process}")

    _, second = met(2, store, run, beat)
    first = PeerMonitor(0, 2, store, run, 60.0)
    first.exchange(beat(0, 5, finished=finished))
    second.exchange(beat(1, 1))
    clock.seconds = 60.0
    second.exchange(beat(1, 2))
    assert not second.unreachable
    clock.seconds = 60.1
    second.exchange(beat(1, 3))
    assert second.unreachable is not finished
    assert list(failure_notes(run)) == ([] if finished else [0])


@pytest.mark.parametrize(
    "entry",
    [
        "", "[]", "{}", '{"number": 1, "silent": 1}', '{"number": 9, "silent": ["1"]}',
        json.dumps({"number": 0, "finished": False, "deadlocked": True, "silent": [1]}),
        json.dumps({"number": 9, "finished": False, "deadlocked": 1, "silent": []}),
    ],
)  # fmt: skip
def test_entry_that_is_no_digest_is_neither_life_nor_silence(peers, store, clock, entry):
    first, second = peers
    first.exchange(beat_of(0, HERE, number=5))
    second.exchange(beat_of(1, HERE, number=1))
    store.set("pipetrain/digest", entry)
    clock.seconds = 100.0
    second.exchange(beat_of(1, HERE, number=2))
    assert not second.unreachable
    assert not second.deadlocked
    clock.seconds = 150.0
    first.exchange(beat_of(0, HERE, number=6))
    second.exchange(beat_of(1, HERE, number=3))
    assert not second.unreachable


def test_worker_looks_after_those_of_its_machine(run, store):
    with sleeper() as process:
        pids = {2: process.pid}
        peers = met(4, store, run, lambda p, number: beat_of(p, pids.get(p, HERE), number))
        assert [each.lost() for each in peers] == [[]] * 4
    assert [each.lost() for each in peers] == [[2], [2], [], [2]]
