"""How workers that an outer launcher started see each other."""

import os
import signal
import time

from support.sleepers import beat_of, sleeper
from torch.distributed import HashStore

from pipetrain.launch.peers import Peers
from pipetrain.launch.watchdog import Watched
from pipetrain.tracking.run_directory import RunDirectory


def peers(run, store, process=0, hang_timeout=60.0):
    return Peers(Watched(process, 2, RunDirectory(run), hang_timeout, 60.0), store)


def test_worker_without_a_sign_of_life_is_named_and_killed(tmp_path):
    store = HashStore()
    one, other = peers(tmp_path, store, hang_timeout=1.0), peers(tmp_path, store, process=1)
    with sleeper() as stopped:
        other.exchange(beat_of(1, stopped.pid))
        for number in range(20):
            one.exchange(beat_of(0, os.getpid(), number))
            time.sleep(0.1)
        assert stopped.wait(timeout=20) == -signal.SIGKILL
    assert RunDirectory(tmp_path).failure_notes().keys() == {1}
    assert RunDirectory(tmp_path).failure_note(1).read_text() == "hung: no sign of life for 1 s\n"


def test_worker_whose_beat_goes_on_is_left_alone(tmp_path):
    store = HashStore()
    one, other = peers(tmp_path, store, hang_timeout=1.0), peers(tmp_path, store, 1, hang_timeout=1.0)
    for number in range(20):
        one.exchange(beat_of(0, os.getpid(), number))
        other.exchange(beat_of(1, os.getpid(), number))
        time.sleep(0.1)
    assert RunDirectory(tmp_path).failure_notes() == {}


def test_worker_that_ended_unasked_is_lost_and_not_one_that_was_done_or_told(tmp_path):
    for activity, lost in (({}, [1]), ({"finished": True}, []), ({"told": True}, [])):
        store = HashStore()
        one, other = peers(tmp_path, store), peers(tmp_path, store, process=1)
        with sleeper() as process:
            other.exchange(beat_of(1, process.pid, **activity))
            one.exchange(beat_of(0, os.getpid()))
            assert one.lost() == []
        assert one.lost() == lost
