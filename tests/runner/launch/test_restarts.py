"""Restarts after a worker failed, with a function in the place of the workers."""

import errno
import json
from dataclasses import replace

import pytest
from support.worker_pool import job, settings
from torch.distributed import TCPStore

from pipetrain.runner.api.one_run import _with_restart
from pipetrain.runner.launch.launcher import WorkerError, with_restarts
from pipetrain.runner.launch.rendezvous import note_begun
from pipetrain.runner.launch.signals import Interruption
from pipetrain.runner.tracking.run_directory import RunDirectory
from pipetrain.runner.tracking.run_lock import locked


class Workers:
    """Fails as often as told; notes where each attempt went on from."""

    def __init__(self, failures, error=None, left=lambda _run: None):
        self.failures = failures
        self.error = error
        self.left = left
        self.resumed = []

    def __call__(self, started):
        self.resumed.append(started.resume)
        (started.run.logs / "launcher.log").write_text(f"attempt {len(self.resumed)}")
        if len(self.resumed) > self.failures:
            return {"status": "completed"}
        self.left(started.run)
        raise WorkerError("stage 1 failed: killed by SIGKILL", "logs in RUN") from self.error


@pytest.fixture
def made(tmp_path):
    with locked(tmp_path / "run"):
        run = job(tmp_path / "run", "pipedream", 2, launch={"max_restarts": 2})
        run.run.logs.mkdir()
        yield run


def carried_out(made, workers, interruption=None):
    told = []
    summary = with_restarts(made, workers, interruption or Interruption(), lambda *each: told.append(each))
    return summary, told


def test_run_whose_worker_failed_starts_anew_and_tells_why(made):
    workers = Workers(2)
    summary, told = carried_out(made, workers)
    assert summary == {"status": "completed"}
    logs = made.run.logs
    reason = "stage 1 failed: killed by SIGKILL; restart {n} of 2, "
    assert [(line.startswith(reason.format(n=n)), step) for n, (line, step) in enumerate(told, 1)] == [(True, 0)] * 2
    assert made.run.restarts == 2
    assert (logs / "before-restart-2" / "launcher.log").read_text() == "attempt 2"
    assert (logs / "launcher.log").read_text() == "attempt 3"


def test_run_fails_after_one_failure_more_than_allowed(made):
    with pytest.raises(WorkerError):
        carried_out(made, workers := Workers(3))
    assert len(workers.resumed) == 3


def test_run_resumes_newest_whole_checkpoint_past_damaged_ones(made, monkeypatch):
    whole = made.run.checkpoint(4)

    def left(run):
        for step in (4, 8):
            run.checkpoint(step).mkdir(parents=True, exist_ok=True)
        run.metrics.write_text('{"step": 4}\n{"step": 5}\n')

    monkeypatch.setattr(
        "pipetrain.runner.training.checkpoint.store.problem", lambda folder: None if folder == whole else "damaged"
    )
    workers = Workers(1, left=left)
    _, told = carried_out(made, workers)
    assert workers.resumed == [None, whole.resolve()]
    assert "restart 1 of 2, from the checkpoint of step 4;" in told[0][0]
    assert told[0][1] == 4
    assert made.run.metrics.read_text() == '{"step": 4}\n'
    assert not made.run.checkpoint(8).exists()


def test_continued_run_without_checkpoint_continues_source_again(made, tmp_path):
    other = tmp_path / "other" / "checkpoints" / "step-00000003"
    workers = Workers(1)
    carried_out(replace(made, resume=other), workers)
    assert workers.resumed == [other, other]


@pytest.mark.parametrize(
    "workers",
    [
        lambda: Workers(1, OSError(errno.ENOSPC, "No space left on device")),
        lambda: Workers(1, left=lambda run: (run.path / ".lock").unlink()),
    ],
    ids=["full disk", "removed directory"],
)
def test_run_that_cannot_write_is_not_started_again(made, workers):
    with pytest.raises(WorkerError):
        carried_out(made, failing := workers())
    assert len(failing.resumed) == 1


def test_run_that_was_told_to_end_is_not_started_again(made):
    interruption = Interruption()
    with pytest.raises(KeyboardInterrupt, match="SIGTERM"):
        carried_out(made, workers := Workers(1, left=lambda _run: interruption.note(15)), interruption)
    assert len(workers.resumed) == 1


@pytest.fixture
def torchrun(monkeypatch):
    """As in rank 0 of what torchrun starts, with its store."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(store.port))
    monkeypatch.setattr("pipetrain.runner.training.checkpoint.store.problem", lambda _folder: None)
    return store


@pytest.mark.usefixtures("torchrun")
def test_start_by_torchrun_continues_only_what_this_launch_has_saved(tmp_path):
    run, chosen = RunDirectory(tmp_path / "run"), settings("gpipe")
    run.checkpoint(4).mkdir(parents=True)  # of a run before this launch
    for _ in range(2):  # the first start may end before it begins
        assert _with_restart(chosen, run).resume is None
    note_begun(job(run.path, "gpipe", 2))
    assert _with_restart(chosen, run).resume == "auto"
    named_by_time = [RunDirectory(tmp_path / name) for name in ("second", "third")]
    for new in named_by_time:
        assert _with_restart(chosen, new).resume == str(run.checkpoint(4).resolve())
        note_begun(job(new.path, "gpipe", 2, resume=run.checkpoint(4).resolve()))


@pytest.mark.usefixtures("torchrun")
def test_start_by_torchrun_without_checkpoint_starts_as_the_first_did(tmp_path):
    chosen = replace(settings("gpipe"), resume="auto")
    note_begun(job(tmp_path / "run", "gpipe", 2))
    for name in ("run", "new"):
        assert _with_restart(chosen, RunDirectory(tmp_path / name)) == chosen


@pytest.mark.parametrize("entry", ["", "{", "7", '["run"]', "[7, null]"])
def test_entry_that_no_run_has_noted_leads_nowhere(tmp_path, torchrun, monkeypatch, entry):
    monkeypatch.delenv("PIPETRAIN_SECRET")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    torchrun.set("pipetrain/begun", entry)
    chosen = replace(settings("gpipe"), resume="auto")
    assert _with_restart(chosen, RunDirectory(tmp_path / "run")) == chosen


def test_run_that_another_has_noted_without_the_secret_is_not_continued(tmp_path, torchrun, monkeypatch):
    monkeypatch.setenv("PIPETRAIN_SECRET", "of this launch")
    chosen, theirs = settings("gpipe"), RunDirectory(tmp_path / "theirs")
    theirs.checkpoint(4).mkdir(parents=True)
    torchrun.set("pipetrain/begun", json.dumps([str(theirs.path), None]))
    assert _with_restart(chosen, RunDirectory(tmp_path / "run")) == chosen
    note_begun(job(theirs.path, "gpipe", 2))
    assert _with_restart(chosen, RunDirectory(tmp_path / "run")).resume == str(theirs.checkpoint(4).resolve())
