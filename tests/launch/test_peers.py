"""How workers that an outer launcher started see each other."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

from support.sleepers import beat_of, sleeper
from torch.distributed import HashStore

from pipetrain.errors import LostStageError
from pipetrain.launch.failure_note import FailureKind, FailureNote, failure_notes
from pipetrain.launch.peers import Peers
from pipetrain.launch.watchdog import Watched
from pipetrain.tracking.run_directory import RunDirectory


def peers(run, store, process=0, hang_timeout=60.0):
    return Peers(Watched(process, 2, None, hang_timeout, 60.0), RunDirectory(run), store)


def test_worker_without_a_sign_of_life_is_named_and_killed(tmp_path):
    store = HashStore()
    one, other = peers(tmp_path, store, hang_timeout=1.0), peers(tmp_path, store, process=1)
    with sleeper() as stopped:
        other.exchange(beat_of(1, stopped.pid))
        for number in range(20):
            one.exchange(beat_of(0, os.getpid(), number))
            time.sleep(0.1)
        assert stopped.wait(timeout=20) == -signal.SIGKILL
    assert failure_notes(RunDirectory(tmp_path)) == {1: FailureNote(FailureKind.HUNG, "no sign of life for 1 s")}


def test_worker_whose_beat_goes_on_is_left_alone(tmp_path):
    store = HashStore()
    one, other = peers(tmp_path, store, hang_timeout=1.0), peers(tmp_path, store, 1, hang_timeout=1.0)
    for number in range(20):
        one.exchange(beat_of(0, os.getpid(), number))
        other.exchange(beat_of(1, os.getpid(), number))
        time.sleep(0.1)
    assert failure_notes(RunDirectory(tmp_path)) == {}


def test_worker_that_is_killed_after_the_first_meeting_is_known_to_be_lost(tmp_path):
    store = HashStore()
    one, other = peers(tmp_path, store), peers(tmp_path, store, process=1)
    with sleeper() as killed:
        with ThreadPoolExecutor() as both:
            list(
                both.map(
                    lambda meet: meet[0].meet(meet[1]),
                    [(one, beat_of(0, os.getpid())), (other, beat_of(1, killed.pid))],
                )
            )
        assert one.lost() == []
        killed.kill()
        killed.wait()
        assert one.lost() == [1]
    one.close()
    other.close()


def named(process):
    return f"stage {process}"


def test_failure_is_what_a_note_says_and_not_that_another_was_lost(tmp_path):
    one = peers(tmp_path, HashStore())
    assert one.failure(named) is None
    FailureNote(FailureKind.LOST, str(LostStageError(1))).leave(RunDirectory(tmp_path), 0)
    assert one.failure(named) is None
    FailureNote(FailureKind.FAILED, "KeyError: 'label'", "Traceback").leave(RunDirectory(tmp_path), 1)
    assert one.failure(named) == "stage 1 failed: KeyError: 'label'"


def test_first_process_to_ask_is_told_so_and_no_other(tmp_path):
    store = HashStore()
    assert [peers(tmp_path, store).is_first() for _ in range(3)] == [True, False, False]


def test_last_word_of_a_worker_that_is_gone_counts_even_if_nobody_had_listened_yet(tmp_path):
    store = HashStore()
    one, other = peers(tmp_path, store), peers(tmp_path, store, process=1)
    with sleeper() as process:
        other.exchange(beat_of(1, process.pid, number=1))
        one.exchange(beat_of(0, os.getpid()))
        other.exchange(beat_of(1, process.pid, number=2, told=True))
    assert one.failure(named) is None


def test_worker_that_ended_unasked_is_lost_and_not_one_that_was_done_or_told(tmp_path):
    for activity, lost in (({}, [1]), ({"finished": True}, []), ({"told": True}, [])):
        store = HashStore()
        one, other = peers(tmp_path, store), peers(tmp_path, store, process=1)
        with sleeper() as process:
            other.exchange(beat_of(1, process.pid, **activity))
            one.exchange(beat_of(0, os.getpid()))
            assert one.lost() == []
        assert one.lost() == lost
        expected = "stage 1 failed: its process ended without a word" if lost else None
        assert one.failure(named) == expected
