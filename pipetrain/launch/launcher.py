"""Starts a run's processes with torch's elastic launcher, and says how they ended."""

import contextlib
import logging
import multiprocessing
import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from pipetrain.errors import RunError
from pipetrain.executors.messages.loopback import ADDRESS
from pipetrain.executors.messages.transport import set_environment
from pipetrain.failure import Failure, RemoteError
from pipetrain.launch import fork_server
from pipetrain.launch.breaking_off import broken_off_by
from pipetrain.launch.failure_note import FailureKind, failure_notes
from pipetrain.launch.lifeline import EXIT_LOST
from pipetrain.launch.overseer import Overseer, WorkerMissing
from pipetrain.launch.rendezvous import LoopbackRendezvous
from pipetrain.launch.signal_pipe import ENDING_A_WORKER
from pipetrain.launch.signals import Interruption
from pipetrain.run.job import Job
from pipetrain.tracking import summary

_END_SECONDS = 10
"""How long a worker may take to end when it is told to; one that is stopped never would."""
_LAUNCHER_LOGS = ("torch.distributed", "torch.multiprocessing")


class WorkerError(RunError):
    """A process failed; says which stage's, and where its log is.

    Attributes:
        reason: which one and how, such as `stage 1 failed: killed by SIGKILL`.
    """

    def __init__(self, reason: str, where: str) -> None:
        super().__init__(f"{reason}; {where}")
        self.reason = reason


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM; every process is ended."""


def launch(job: Job, interruption: Interruption) -> dict[str, Any]:
    """Runs the job's stages to their end; the summary that the last stage wrote.

    Args:
        job: what to run.
        interruption: of the run; takes note of every signal, even of one that comes too late for it.

    Raises:
        Interrupted: a signal came.
        WorkerError: a worker failed; the first one, not a neighbor that noticed.
    """
    run = job.run
    run.forget_failures()
    run.logs.mkdir(parents=True, exist_ok=True)
    set_environment(job.device)  # the fork server imports torch, which reads some of it then
    fork_server.start()
    stop_timeout = job.settings.launch.stop_timeout
    with (
        _surroundings(job),
        Overseer(job) as overseer,
        broken_off_by(overseer.break_off, stop_timeout, interruption),
    ):
        try:
            elastic_launch(_config(job, overseer), fork_server.run_worker)(job, fork_server.changes(), overseer.lines)
        except ChildFailedError as error:
            if summary.read(run) is None:
                explained = _explained(job, error)
                raise explained from explained.__cause__
        except WorkerMissing as error:
            if summary.read(run) is None:
                raise WorkerError(f"{job.placement.name(error.process)} {error}", f"logs in {run.logs}") from None
        except KeyboardInterrupt as error:
            for worker in multiprocessing.active_children():  # a second signal came before they had all ended
                worker.kill()
            if summary.read(run) is None:
                raise Interrupted(*error.args) from None
        result = summary.read(run)
        if result is None:
            raise WorkerError("the workers ended without a summary", f"logs in {run.logs}")
        interruption.settle()
        return result


def _config(job: Job, overseer: Overseer) -> LaunchConfig:
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=job.placement.num_processes,
        run_id=uuid.uuid4().hex,
        rdzv_backend=LoopbackRendezvous.NAME,
        rdzv_configs={"check": overseer.check},
        local_addr=ADDRESS,
        max_restarts=0,
        monitor_interval=0.1,
        start_method=fork_server.METHOD,
        # these are ours to handle: torch would keep its handlers for good, and undo what nohup asks for
        signals_to_handle="SIGRTMAX",
        logs_specs=DefaultLogsSpecs(log_dir=str(job.run.logs), redirects=Std.ALL),
    )
    if hasattr(config, "shutdown_timeout"):  # torch 2.11 cannot be told, and gives them 30 s
        config.shutdown_timeout = _END_SECONDS
    return config


@contextlib.contextmanager
def _surroundings(job: Job) -> Iterator[None]:
    """Around the life of the workers."""
    with mock.patch.dict(os.environ, OMP_NUM_THREADS=str(job.threads)), _quiet_launcher(job.run.logs):
        try:
            yield
        except (ConnectionError, EOFError) as error:
            if fork_server.running():
                raise
            raise _without_fork_server(job) from error


def _explained(job: Job, error: ChildFailedError) -> WorkerError:
    logs, notes = job.run.logs, failure_notes(job.run)
    hung = [process for process, note in notes.items() if note.kind is FailureKind.HUNG]
    if hung:
        return WorkerError(f"{job.placement.name(hung[0])} {notes[hung[0]].line}", f"logs in {logs}")
    # a lost connection is a symptom: blame the first worker that failed for another reason
    culprits = [item for item in error.failures.items() if item[1].exitcode != EXIT_LOST] or [*error.failures.items()]
    rank, failure = min(culprits, key=lambda item: item[1].timestamp)
    failed = {process: note for process, note in notes.items() if note.kind is FailureKind.FAILED}
    if failure.exitcode == EXIT_LOST and failed:  # who failed has taken longer to end
        rank = next(iter(failed))
    if failure.exitcode == fork_server.EXIT_UNKNOWN and not fork_server.running():
        return _without_fork_server(job)
    stage = job.placement.name(rank)
    if rank not in failed:
        return WorkerError(f"{stage} failed: {_reason(failure)}{_last_words(logs, rank, failure)}", f"logs in {logs}")
    note = failed[rank]
    explained = WorkerError(f"{stage} {note.line}", f"traceback in {job.run.failure_traceback(rank)}")
    explained.__cause__ = RemoteError(Failure(note.line, note.traceback))
    return explained


def _without_fork_server(job: Job) -> WorkerError:
    return WorkerError("the process from which the workers are forked has ended", f"logs in {job.run.logs}")


def _reason(failure: ProcessFailure) -> str:
    if failure.exitcode < 0:
        return f"killed by {signal.Signals(-failure.exitcode).name}"
    # torch's own record, of a worker that failed before it could leave a note
    message = (failure.error_file_data or {}).get("message", {})
    text = message.get("message", "") if isinstance(message, dict) else ""
    if not text and failure.exitcode - 128 in ENDING_A_WORKER:
        return f"ended by {signal.Signals(failure.exitcode - 128).name}"
    return text or f"exit code {failure.exitcode}"


def _last_words(logs: Path, rank: int, failure: ProcessFailure) -> str:
    """The last line of a worker that aborted, as torch's own threads do after an error of NCCL's or CUDA's."""
    if failure.exitcode != -signal.SIGABRT:
        return ""
    files = sorted(logs.glob(f"**/{rank}/stderr.log"), key=lambda file: file.stat().st_mtime)
    lines = files[-1].read_text(encoding="utf-8", errors="replace").splitlines() if files else []
    return next((f": {line.strip()}" for line in reversed(lines) if line.strip()), "")


@contextlib.contextmanager
def _quiet_launcher(logs: Path) -> Iterator[None]:
    """The launcher's own log goes to a file: on the terminal it would garble the progress bar."""
    loggers = [logging.getLogger(name) for name in logging.root.manager.loggerDict if name.startswith(_LAUNCHER_LOGS)]
    handler = logging.FileHandler(logs / "launcher.log")
    before = [(each, each.handlers[:], each.propagate) for each in loggers]
    for each, _, _ in before:
        each.handlers, each.propagate = [handler], False
    try:
        yield
    finally:
        for each, handlers, propagate in before:
            each.handlers, each.propagate = handlers, propagate
        handler.close()
