"""Starts a run's worker processes, waits for them, explains how they ended, and restarts a run whose worker failed."""

import logging
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import replace
from multiprocessing import connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from pipetrain.engine.errors import RunError
from pipetrain.engine.failure import Failure, RemoteError, is_disk_full
from pipetrain.runner.launch import fork_server
from pipetrain.runner.launch.failure_note import FailureKind, failure_notes
from pipetrain.runner.launch.graceful_stop import drain_on_signal
from pipetrain.runner.launch.monitor import LauncherMonitor, UnreportedWorkerFailure
from pipetrain.runner.launch.process_exit import EXIT_LOST
from pipetrain.runner.launch.signals import ENDING_A_WORKER, Interruption
from pipetrain.runner.launch.stores import PrivateFolder
from pipetrain.runner.tracking import records, summary
from pipetrain.runner.tracking.run_lock import is_removed
from pipetrain.runner.training.checkpoint import store
from pipetrain.runner.training.checkpoint.writer import remove_leftovers
from pipetrain.runner.training.job import Job

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.1
_END_SECONDS = 10.0
"""Seconds that the system may take to end a worker that was killed."""


class WorkerError(RunError):
    """A process failed; names its stage and its log file.

    Attributes:
        reason: such as `stage 1 failed: killed by SIGKILL`.
    """

    def __init__(self, reason: str, where: str) -> None:
        super().__init__(f"{reason}; {where}")
        self.reason = reason


def with_restarts(
    job: Job, attempt: Callable[[Job], dict[str, Any]], interruption: Interruption, report: Callable[[str, int], None]
) -> dict[str, Any]:
    """Runs a job, restarting it up to `launch.max_restarts` times if a worker dies or hangs; returns its summary.

    Each start has the checkpoint's bits and drains where the configuration says, so the result equals that of a run
    without failures.

    Args:
        job: the run.
        attempt: carries it out once, and returns its summary.
        interruption: of the run; a run that a signal ends is not restarted.
        report: receives a line about the failure, and the step from which the run resumes.

    Raises:
        WorkerError: a worker failed once more, or the run directory takes no more files.
    """
    most = job.settings.launch.max_restarts
    for restart in range(1, most + 1):
        try:
            return attempt(job)
        except WorkerError as error:
            interruption.check()
            if is_removed(job.run.path) or is_disk_full(error):
                raise
            job = _resumed(job)
            step = store.step_of(job.resume) if job.resume else 0
            where = f"from the checkpoint of step {step}" if job.resume else "from the beginning"
            line = f"{error.reason}; restart {restart} of {most}, {where}; logs in {job.run.archive_logs()}"
            log.warning(line)
            report(line, step)
    return attempt(job)


def _resumed(job: Job) -> Job:
    """The job, resumed from the newest complete checkpoint; records of later steps are removed from its directory."""
    run, source = job.run, job.resume
    remove_leftovers(run.path)
    own, _ = store.newest_whole(run.path)
    run.archive_checkpoints_after(own)
    if own or (source and source.parent == run.checkpoints.resolve()):
        source = own  # else the checkpoint of another run, if this run began with one
    records.copy_records_until(run, run, store.step_of(source) if source else 0)
    return replace(job, resume=source)


def launch(job: Job, interruption: Interruption) -> dict[str, Any]:
    """Runs the job's stages to their end; returns the summary that the last stage wrote.

    Raises:
        KeyboardInterrupt: a signal came; every process is ended.
        WorkerError: a worker failed; the first one, not a neighbor that noticed.
    """
    run = job.run
    run.forget_failures()
    run.logs.mkdir(parents=True, exist_ok=True)
    fork_server.start()
    workers: list[ForkServerProcess] = []
    size = str(job.placement.num_processes)
    environment = {
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        **os.environ,
        "OMP_NUM_THREADS": str(job.threads),
        "WORLD_SIZE": size,
        "LOCAL_WORLD_SIZE": size,
    }
    environment.pop(fork_server.MODULES, None)
    with (
        tempfile.TemporaryDirectory(prefix="pipetrain-", ignore_cleanup_errors=True) as folder,
        LauncherMonitor(job, PrivateFolder(Path(folder)), lambda rank: workers[rank].kill()) as monitor,
        drain_on_signal(monitor.break_off, job.settings.launch.stop_timeout, interruption),
    ):
        try:
            _run(job, environment, monitor, workers, Path(folder))
        except WorkerError:
            if summary.read(run) is None:
                raise
        except KeyboardInterrupt:
            _kill(workers)  # a second signal came before they had all ended
            if summary.read(run) is None:
                raise
        result = summary.read(run)
        if result is None:
            raise WorkerError("the workers ended without a summary", f"logs in {run.logs}")
        interruption.settle()
        return result


def _run(
    job: Job, environment: dict[str, str], monitor: LauncherMonitor, workers: list[ForkServerProcess], private: Path
) -> None:
    """Runs the workers until all have finished their parts; leaves no process.

    Adds each worker to `workers` before it starts. They communicate through the folder `private`.

    Raises:
        WorkerError: a worker failed.
    """
    logs = job.run.logs / private.name
    try:
        _start(job, environment, workers, private, logs)
        running = dict(enumerate(workers))
        while running:
            connection.wait([worker.sentinel for worker in running.values()], _POLL_SECONDS)
            monitor.check()
            if not private.is_dir():  # else a start would wait, and workers that live would be taken for silent
                raise WorkerError(f"the folder {private} of the workers' messages was removed", f"logs in {logs}")
            exits = {rank: code for rank, worker in running.items() if (code := worker.exitcode) is not None}
            if failures := {rank: code for rank, code in exits.items() if code}:
                raise _explained(job, failures, logs)
            for rank in exits:
                monitor.check_finished(rank)
                del running[rank]
    except UnreportedWorkerFailure as error:
        raise WorkerError(f"{job.placement.name(error.process)} {error}", f"logs in {job.run.logs}") from None
    except (ConnectionError, EOFError) as error:
        if not fork_server.has_ended():
            raise
        raise _without_fork_server(job) from error
    finally:
        for worker in _kill(workers):
            worker.join(_END_SECONDS)


def _start(job: Job, environment: dict[str, str], workers: list[ForkServerProcess], private: Path, logs: Path) -> None:
    context = multiprocessing.get_context(fork_server.METHOD)
    for rank in range(job.placement.num_processes):
        own, folder = {**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}, logs / str(rank)
        folder.mkdir(parents=True)
        workers.append(context.Process(target=run_worker, args=(job, own, folder, private)))
        workers[-1].start()


def _kill(workers: Iterable[ForkServerProcess]) -> list[ForkServerProcess]:
    """Kills the workers that have started; returns them."""
    started = [worker for worker in workers if worker.pid is not None]
    for worker in started:
        worker.kill()
    return started


def run_worker(job: Job, environment: dict[str, str], logs: Path, private: Path) -> None:
    """Runs the stages of this process, which was forked, with its output in the folder `logs`.

    It finds the other workers through the folder `private`.
    """
    for stream, name in ((1, "stdout.log"), (2, "stderr.log")):
        with (logs / name).open("wb") as file:
            os.dup2(file.fileno(), stream)
    from pipetrain.runner.launch.worker import run_spawned

    # a user's code starts processes as in any other program; a second fork server would outlive a killed worker
    multiprocessing.set_start_method(None, force=True)
    os.environ.clear()
    os.environ.update(environment)
    run_spawned(job, private)


def _explained(job: Job, exit_codes: dict[int, int], logs: Path) -> WorkerError:
    """The error of the worker that failed first, from the exit codes other than 0, by rank."""
    notes, where = failure_notes(job.run), f"logs in {job.run.logs}"
    hung = [rank for rank, note in notes.items() if note.kind is FailureKind.HUNG]
    if hung:
        return WorkerError(f"{job.placement.name(hung[0])} {notes[hung[0]].line}", where)
    failed = {rank: note for rank, note in notes.items() if note.kind is FailureKind.FAILED}
    # a lost connection is a symptom: blame a worker that failed for another reason, which may take longer to end
    culprits = [rank for rank, code in exit_codes.items() if code != EXIT_LOST] or [*failed, *exit_codes]
    rank = culprits[0]
    if exit_codes.get(rank) == fork_server.EXIT_UNKNOWN and fork_server.has_ended():
        return _without_fork_server(job)
    stage = job.placement.name(rank)
    if rank not in failed:
        return WorkerError(f"{stage} failed: {_reason(exit_codes[rank], logs / str(rank) / 'stderr.log')}", where)
    note = failed[rank]
    explained = WorkerError(f"{stage} {note.line}", f"traceback in {job.run.failure_traceback(rank)}")
    explained.__cause__ = RemoteError(Failure(note.line, note.traceback))
    return explained


def _without_fork_server(job: Job) -> WorkerError:
    return WorkerError("the process from which the workers are forked has ended", f"logs in {job.run.logs}")


def _reason(exit_code: int, log: Path) -> str:
    """Reason of a worker's failure without a note."""
    if exit_code - 128 in ENDING_A_WORKER:
        return f"ended by {signal.Signals(exit_code - 128).name}"
    if exit_code >= 0:
        return f"exit code {exit_code}"
    reason = f"killed by {signal.Signals(-exit_code).name}"
    if exit_code == -signal.SIGABRT and log.is_file():  # by a thread of torch's, after an error of NCCL's or CUDA's
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        reason += next((f": {line.strip()}" for line in reversed(lines) if line.strip()), "")
    return reason
