"""How the end of the worker processes is explained."""

import multiprocessing
import os
import shutil
import signal
from types import SimpleNamespace

import pytest
from support.worker_pool import job

from pipetrain.engine.errors import ExitCode
from pipetrain.runner.launch import fork_server, launcher
from pipetrain.runner.launch.failure_note import FailureKind, FailureNote
from pipetrain.runner.launch.launcher import WorkerError, launch
from pipetrain.runner.launch.process_exit import EXIT_LOST
from pipetrain.runner.launch.signals import Interruption
from pipetrain.runner.launch.watchdog import EXIT_HUNG
from pipetrain.runner.tracking import summary


@pytest.fixture
def made(tmp_path):
    return job(tmp_path / "run", "pipedream", 3)


def ending(monkeypatch, workers):
    """Puts a function in the place of the worker processes."""
    monkeypatch.setattr(fork_server, "start", lambda: None)
    monkeypatch.setattr(launcher, "_run", lambda job, *_: workers(job))


def failing(monkeypatch, failures, before=lambda _job: None):
    def workers(job):
        before(job)
        raise launcher._explained(job, failures, job.run.logs)

    ending(monkeypatch, workers)


def lost(run):
    FailureNote(FailureKind.LOST, "lost stage 1").leave(run, 0)


def hung(run):
    lost(run)
    FailureNote(FailureKind.HUNG, "8 s in F3.0").leave(run, 1)


def last_words(run):
    (run.logs / "1").mkdir()
    (run.logs / "1" / "stderr.log").write_text("first\nNCCL error: unhandled\n\n")


@pytest.mark.parametrize(
    ("failures", "before", "message"),
    [
        ({1: -9}, None, "stage 1 failed: killed by SIGKILL"),
        ({1: 7}, None, "stage 1 failed: exit code 7"),
        ({1: 128 + 15}, None, "stage 1 failed: ended by SIGTERM"),
        ({1: 128 + 2}, None, "stage 1 failed: ended by SIGINT"),
        ({0: EXIT_LOST, 2: -9, 1: 7}, lost, "stage 2 failed: killed by SIGKILL"),
        ({2: EXIT_LOST, 0: EXIT_LOST}, None, f"stage 2 failed: exit code {EXIT_LOST}"),
        ({0: EXIT_LOST, 1: EXIT_HUNG}, hung, "stage 1 hung: 8 s in F3.0"),
        ({1: -signal.SIGABRT}, last_words, "stage 1 failed: killed by SIGABRT: NCCL error: unhandled"),
    ],
)
def test_first_failed_worker_is_named_and_not_its_victim(monkeypatch, made, failures, before, message):
    FailureNote(FailureKind.HUNG, "9 s in F3.0").leave(made.run, 1)  # of an earlier attempt
    failing(monkeypatch, failures, lambda each: before and before(each.run))
    with pytest.raises(WorkerError) as caught:
        launch(made, Interruption())
    assert str(caught.value) == f"{message}; logs in {made.run.logs}"


def test_exception_of_a_worker_is_told_as_its_note_tells_it(monkeypatch, made):
    def notes(job):
        note = FailureNote(FailureKind.FAILED, "KeyError: 'label' (data.py:7)", "Traceback\n  in data.py")
        note.leave(job.run, 1)

    failing(monkeypatch, {0: EXIT_LOST, 1: 1}, notes)
    with pytest.raises(WorkerError) as caught:
        launch(made, Interruption())
    file = made.run.failure_traceback(1)
    assert str(caught.value) == f"stage 1 failed: KeyError: 'label' (data.py:7); traceback in {file}"
    assert file.read_text() == "Traceback\n  in data.py"
    assert caught.value.__cause__.failure.traceback == "Traceback\n  in data.py"


def test_lost_fork_server_is_named_and_not_its_worker(monkeypatch, made):
    monkeypatch.setattr(fork_server, "has_ended", lambda: True)
    failing(monkeypatch, {0: fork_server.EXIT_UNKNOWN})
    with pytest.raises(WorkerError, match=r"^the process from which the workers are forked has ended; logs in "):
        launch(made, Interruption())


@pytest.mark.parametrize(("has_ended", "error"), [(True, WorkerError), (False, EOFError)])
def test_fork_server_lost_before_it_forks_is_named(monkeypatch, made, has_ended, error):
    def start(*_):
        raise EOFError

    monkeypatch.setattr(fork_server, "start", lambda: None)
    monkeypatch.setattr(multiprocessing.context.ForkServerProcess, "start", start)
    monkeypatch.setattr(fork_server, "has_ended", lambda: has_ended)
    with pytest.raises(error):
        launch(made, Interruption())


def test_removed_folder_of_the_meeting_is_named(monkeypatch, made):
    class Worker:
        pid = exitcode = None

        def __init__(self, args, **_target):
            self.folder = args[-1]
            self.sentinel, self.end = multiprocessing.Pipe()

        def start(self):
            shutil.rmtree(self.folder, ignore_errors=True)

    monkeypatch.setattr(fork_server, "start", lambda: None)
    monkeypatch.setattr(launcher.multiprocessing, "get_context", lambda _: SimpleNamespace(Process=Worker))
    with pytest.raises(
        WorkerError, match=r"^the folder .*/pipetrain-\w+ of the workers' messages was removed; logs in "
    ):
        launch(made, Interruption())


@pytest.mark.parametrize(
    "end", [KeyboardInterrupt("SIGTERM"), WorkerError("stage 0 failed", "logs")], ids=["signal", "failure"]
)
def test_run_whose_summary_is_there_ended_as_that_says(monkeypatch, made, end):
    def workers(job):
        summary.write(job.run, {"status": "completed"})
        raise end

    ending(monkeypatch, workers)
    assert launch(made, Interruption()) == {"status": "completed"}


def test_divergence_is_a_summary_and_no_failure(monkeypatch, made):
    failing(
        monkeypatch, {0: EXIT_LOST, 2: ExitCode.DIVERGED}, lambda each: summary.write(each.run, {"status": "diverged"})
    )
    assert launch(made, Interruption()) == {"status": "diverged"}


def test_late_signal_for_a_run_is_noted_for_its_sweep(monkeypatch, made):
    def workers(job):
        os.kill(os.getpid(), signal.SIGTERM)
        summary.write(job.run, {"status": "completed"})

    ending(monkeypatch, workers)
    monkeypatch.setattr("pipetrain.runner.launch.monitor.LauncherMonitor.break_off", lambda _self: True)
    interruption = Interruption()
    assert launch(made, interruption) == {"status": "completed"}
    with pytest.raises(KeyboardInterrupt, match="SIGTERM"):
        interruption.check()


def test_workers_that_end_without_a_summary_have_failed(monkeypatch, made):
    ending(monkeypatch, lambda _job: None)
    with pytest.raises(WorkerError, match="the workers ended without a summary"):
        launch(made, Interruption())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_to_the_launcher_is_an_interruption(monkeypatch, made, number):
    def workers(_job):
        os.kill(os.getpid(), number)

    ending(monkeypatch, workers)
    with pytest.raises(KeyboardInterrupt, match=signal.Signals(number).name):
        launch(made, Interruption())


def test_worker_has_launcher_environment_and_writes_logs(monkeypatch, tmp_path):
    def run_spawned(job, _folder):
        os.write(1, f"{job} {dict(os.environ)}\n".encode())

    monkeypatch.setattr("pipetrain.runner.launch.worker.run_spawned", run_spawned)
    child = os.fork()
    if not child:
        try:
            launcher.run_worker("the job", {"ADDED": "later", "RANK": "1"}, tmp_path, tmp_path)
            os.system("echo of a child >&2")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert (tmp_path / "stdout.log").read_text() == "the job {'ADDED': 'later', 'RANK': '1'}\n"
    assert (tmp_path / "stderr.log").read_text() == "of a child\n"
