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
from pipetrain.failure import Failure, RemoteError
from pipetrain.launch import fork_server, loopback
from pipetrain.launch.breaking_off import broken_off_by
from pipetrain.launch.lifeline import EXIT_LOST
from pipetrain.launch.loopback import LoopbackRendezvous
from pipetrain.launch.overseer import Overseer, WorkerMissing
from pipetrain.launch.signals import interruptible
from pipetrain.run.job import Job
from pipetrain.tracking import summary

_END_SECONDS = 10
"""How long a worker may take to end when it is told to; one that is stopped never would."""
_ENDING_A_WORKER = (signal.SIGTERM, signal.SIGINT)
_LAUNCHER_LOGS = ("torch.distributed", "torch.multiprocessing")


class WorkerError(RunError):
    """A process failed; says which stage's, and where its log is."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM; every process is ended."""


def launch(job: Job) -> dict[str, Any]:
    """Runs the job's stages to their end; the summary that the last stage wrote.

    Raises:
        Interrupted: a signal came.
        KeyboardInterrupt: one came too late for this run, which has ended by itself.
        WorkerError: a worker failed; the first one, not a neighbor that noticed.
    """
    run = job.run
    run.forget_failures()
    run.logs.mkdir(parents=True, exist_ok=True)
    fork_server.start()
    stop_timeout = job.settings.launch.stop_timeout
    with (
        _surroundings(job),
        Overseer(job) as overseer,
        broken_off_by(overseer.break_off, stop_timeout) as interruption,
    ):
        try:
            elastic_launch(_config(job, overseer), fork_server.run_worker)(job, fork_server.changes(), overseer.lines)
        except ChildFailedError as error:
            if summary.read(run) is None:
                explained = _explained(job, error)
                raise explained from explained.__cause__
        except WorkerMissing as error:
            if summary.read(run) is None:
                raise WorkerError(f"{job.placement.name(error.process)} {error}; logs in {run.logs}") from None
        except KeyboardInterrupt as error:
            for worker in multiprocessing.active_children():  # a second signal came before they had all ended
                worker.kill()
            if summary.read(run) is None:
                raise Interrupted(*error.args) from None
    result = summary.read(run)
    if result is None:
        raise WorkerError(f"the workers ended without a summary; logs in {run.logs}")
    if result["status"] != "interrupted":
        interruption.check()
    return result


def _config(job: Job, overseer: Overseer) -> LaunchConfig:
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=job.placement.num_processes,
        run_id=uuid.uuid4().hex,
        rdzv_backend=LoopbackRendezvous.NAME,
        rdzv_configs={"check": overseer.check},
        local_addr=loopback.ADDRESS,
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
    with mock.patch.dict(os.environ, OMP_NUM_THREADS=str(job.threads)), _quiet_launcher(job.run.logs), interruptible():
        try:
            yield
        except (ConnectionError, EOFError) as error:
            if fork_server.running():
                raise
            raise _without_fork_server(job) from error


def _explained(job: Job, error: ChildFailedError) -> WorkerError:
    logs = job.run.logs
    notes = {process: _told(note) for process, note in job.run.failure_notes().items()}
    hung = [(process, note.line) for process, note in notes.items() if note.line.startswith("hung")]
    if hung:
        return WorkerError(f"{job.placement.name(hung[0][0])} {hung[0][1]}; logs in {logs}")
    # a lost connection is a symptom: blame the first worker that failed for another reason
    culprits = [item for item in error.failures.items() if item[1].exitcode != EXIT_LOST] or [*error.failures.items()]
    rank, failure = min(culprits, key=lambda item: item[1].timestamp)
    failed = [process for process, note in notes.items() if note.line.startswith("failed")]
    if failure.exitcode == EXIT_LOST and failed:  # who failed has taken longer to end
        rank = failed[0]
    if failure.exitcode == fork_server.EXIT_UNKNOWN and not fork_server.running():
        return _without_fork_server(job)
    stage = job.placement.name(rank)
    if rank in notes and notes[rank].line.startswith("failed"):
        explained = WorkerError(f"{stage} {notes[rank].line}; traceback in {job.run.failure_note(rank)}")
        explained.__cause__ = RemoteError(notes[rank])
        return explained
    return WorkerError(f"{stage} failed: {_reason(failure)}; logs in {logs}")


def _without_fork_server(job: Job) -> WorkerError:
    return WorkerError(f"the process from which the workers are forked has ended; logs in {job.run.logs}")


def _told(note: Path) -> Failure:
    line, _, traceback = note.read_text(encoding="utf-8").partition("\n")
    return Failure(line, traceback)


def _reason(failure: ProcessFailure) -> str:
    if failure.exitcode < 0:
        return f"killed by {signal.Signals(-failure.exitcode).name}"
    # torch's own record, of a worker that failed before it could leave a note
    message = (failure.error_file_data or {}).get("message", {})
    text = message.get("message", "") if isinstance(message, dict) else ""
    if not text and failure.exitcode - 128 in _ENDING_A_WORKER:
        return f"ended by {signal.Signals(failure.exitcode - 128).name}"
    return text or f"exit code {failure.exitcode}"


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
