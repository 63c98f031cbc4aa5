"""What the launcher sees of workers that cannot tell it themselves."""

import os
import signal
import time
from dataclasses import replace

import pytest
from support.sleepers import beat_of, sleeper
from support.waiting import eventually
from support.worker_pool import job

from pipetrain.errors import RunError
from pipetrain.launch import overseer
from pipetrain.launch.failure_note import failure_notes
from pipetrain.launch.overseer import Overseer, WorkerMissing
from pipetrain.tracking.run_directory import RunDirectory


@pytest.fixture
def watching(tmp_path):
    """Starts an overseer of two workers, with these limits."""
    open_ones = []
    (tmp_path / "run").mkdir()

    def start(hang_timeout=60.0, start_timeout=60.0):
        made = job(
            tmp_path / "run", "pipedream", 2, launch={"hang_timeout": hang_timeout, "start_timeout": start_timeout}
        )
        open_ones.append(Overseer(made).__enter__())
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
        except WorkerMissing as error:
            return error.process, str(error)
        time.sleep(0.05)
    raise AssertionError("nobody is missing")


def tell(watching, *beats):
    for beat in beats:
        watching.lines.heartbeats.send_bytes(beat.encoded())


def test_worker_that_never_starts_is_missed(watching):
    overseer = watching(start_timeout=0.7)
    tell(overseer, beat_of(0, os.getpid(), waiting=True))
    assert missing(overseer) == (1, "did not start within launch.start_timeout=0.7 seconds")


def test_worker_without_a_sign_of_life_is_named_and_killed(watching, tmp_path):
    overseer = watching(hang_timeout=1.0)
    with sleeper() as stopped:
        tell(overseer, beat_of(1, stopped.pid))
        assert stopped.wait(timeout=20) == -signal.SIGKILL
    assert failure_notes(RunDirectory(tmp_path / "run"))[1].line == "hung: no sign of life for 1 s"


def test_worker_that_leaves_with_exit_code_0_is_missed_soon(watching):
    overseer = watching()
    with sleeper() as left:
        tell(overseer, beat_of(0, os.getpid()), beat_of(1, left.pid, what="F3.0"))
        time.sleep(0.7)
    began = time.monotonic()
    assert missing(overseer) == (1, "failed: it ended with exit code 0 before the run did")
    assert time.monotonic() - began < 5


def test_worker_whose_part_is_done_may_leave(watching):
    overseer = watching()
    with sleeper() as left:
        tell(overseer, beat_of(0, os.getpid()), beat_of(1, left.pid, finished=True))
        time.sleep(0.7)
    time.sleep(3.0)
    overseer.check()


def test_workers_that_all_wait_for_each_other_hang(watching):
    watching = watching(hang_timeout=1.0)
    began = time.monotonic()
    caught = None
    for number in range(100):
        tell(watching, *(beat_of(p, os.getpid(), number, what=f"F{p}.0, waiting", waiting=True) for p in (0, 1)))
        time.sleep(0.1)
        try:
            watching.check()
        except WorkerMissing as error:
            caught = error
            break
    assert str(caught) == "hung: 1 s in F0.0, waiting, and every other stage waits as well: process 1 in F1.0, waiting"
    assert time.monotonic() - began < 8


def test_one_that_waits_for_another_that_computes_does_not_hang(watching):
    watching = watching(hang_timeout=1.0)
    for number in range(25):
        tell(watching, beat_of(0, os.getpid(), number, waiting=True), beat_of(1, os.getpid(), number))
        time.sleep(0.1)
        watching.check()


def test_process_that_stays_after_the_end_of_the_run_is_ended(watching, monkeypatch):
    monkeypatch.setattr(overseer, "_ENDING_SECONDS", 0.5)
    with sleeper() as one, sleeper() as other:
        tell(watching(), beat_of(0, one.pid, finished=True), beat_of(1, other.pid, finished=True))
        assert one.wait(timeout=20) == other.wait(timeout=20) == -signal.SIGKILL


def test_telling_an_overseer_that_does_not_listen_never_waits(tmp_path):
    stopped = Overseer(job(tmp_path / "run", "pipedream", 2))
    many = [beat_of(0, os.getpid(), number) for number in range(10_000)]
    with pytest.raises(BlockingIOError):
        tell(stopped, *many)


def test_order_to_break_off_reaches_workers_once_all_of_them_train(watching):
    overseer = watching()
    assert not overseer.break_off(), "nobody was heard of"
    tell(overseer, beat_of(0, os.getpid()), beat_of(1, os.getpid(), starting=True))
    eventually(lambda: overseer._calls.last(1) is not None)
    assert not overseer.break_off()
    assert not overseer.lines.order.poll(0)
    tell(overseer, replace(beat_of(1, os.getpid()), number=2))
    eventually(lambda: not overseer._calls.last(1).starting)
    assert overseer.break_off()
    assert overseer.lines.order.poll(0)


def test_thread_that_can_no_longer_watch_the_workers_ends_the_run(watching):
    overseer = watching()
    overseer.lines.heartbeats.send_bytes(b"no heartbeat")
    overseer._thread.join(timeout=20)
    with pytest.raises(RunError, match="the thread that watches the workers failed: JSONDecodeError"):
        overseer.check()
