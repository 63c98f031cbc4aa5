"""A worker that does not reach the store any more."""

import threading

import pytest

from pipetrain.launch import lifeline
from pipetrain.launch.failure_note import FailureKind, failure_notes
from pipetrain.launch.reach import Reach
from pipetrain.launch.watchdog import Watched
from pipetrain.tracking.run_directory import RunDirectory


@pytest.fixture
def ended(monkeypatch):
    """The exit codes of this process, which does not end."""
    codes, told = [], threading.Event()

    def end(code):
        codes.append(code)
        told.set()

    monkeypatch.setattr(lifeline, "end", end)
    return codes, told


def reach(run, hang_timeout):
    return Reach(Watched(1, 2, None, hang_timeout, 60.0), RunDirectory(run))


def test_worker_that_a_cut_link_leaves_without_answers_says_so_and_ends(tmp_path, ended, capsys):
    codes, told = ended
    reach(tmp_path, hang_timeout=0.1).begin()
    assert told.wait(20)
    assert codes == [lifeline.EXIT_LOST]
    assert "process 1 has not reached the machine of the first process for 0.1 s" in capsys.readouterr().err
    assert failure_notes(RunDirectory(tmp_path))[1].kind is FailureKind.LOST


@pytest.mark.parametrize("finished", [False, True])
def test_worker_that_gets_answers_or_is_done_goes_on(tmp_path, ended, finished):
    _, told = ended
    each = reach(tmp_path, hang_timeout=0.8)
    each.begin()
    for _ in range(8):
        each.close() if finished else each.answered()
        assert not told.wait(0.2)
    each.close()
