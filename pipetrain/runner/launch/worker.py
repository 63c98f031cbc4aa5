"""The life of a process that runs stages: alone, started by our launcher, or by an outer one."""

import os
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch.distributed as dist

from pipetrain.engine.arithmetic import switched
from pipetrain.engine.errors import DivergedError, ExitCode, LostStageError, RunError
from pipetrain.engine.executors.admission_gate import AdmissionGate
from pipetrain.engine.executors.hooks import RunHooks
from pipetrain.engine.executors.messages.transport import Transport
from pipetrain.engine.failure import Failure
from pipetrain.engine.stage.measurements import reset_peak_memory
from pipetrain.runner.launch import open_files, process_exit
from pipetrain.runner.launch.failure_note import FailureKind, FailureNote, named_failure
from pipetrain.runner.launch.graceful_stop import drain_on_signal
from pipetrain.runner.launch.peer_monitor import PeerMonitor
from pipetrain.runner.launch.rendezvous import join, monitoring_board, note_begun
from pipetrain.runner.launch.signals import Interruption
from pipetrain.runner.launch.stores import PrivateFolder, SignedStore
from pipetrain.runner.launch.watchdog import Watchdog
from pipetrain.runner.tracking.run_directory import RunDirectory
from pipetrain.runner.tracking.run_recorder import Show
from pipetrain.runner.training.components.machine import device_at, freed_memory_kept, keep_freed_memory
from pipetrain.runner.training.job import Job
from pipetrain.runner.training.outcome import reports_by_stage
from pipetrain.runner.training.session import training_session

_PRECEDENCE_SECONDS = 1.0
"""Seconds given to one process to report how the run ended, before other processes try."""


def run_simulated(job: Job, show: Show, interruption: Interruption) -> dict[str, Any]:
    """Runs all stages in this process; the summary, which is also written.

    `show` is given every record; `interruption` records every signal, even one that comes too late.
    """
    gate = AdmissionGate(alone=True)

    def stop() -> bool:
        gate.end()
        return True

    with freed_memory_kept(), _switched(job):
        reset_peak_memory(device_at(job.device, 0))
        with training_session(job, RunHooks(gate=gate), show) as session:
            try:
                with drain_on_signal(stop, job.settings.launch.stop_timeout, interruption):
                    result = session.train() or {}
                    interruption.settle()
                    return result
            except DivergedError as error:
                session.trainer.record_staleness()  # lost in processes that are killed
                return session.diverge(error, session.trainer.reports())


def _switched(job: Job) -> AbstractContextManager[None]:
    """torch's switches as the settings have them."""
    return switched(job.device, deterministic=job.settings.deterministic, tf32=job.settings.train.tf32)


def run_spawned(job: Job, folder: Path) -> None:
    """The life of a process that our launcher started, which has made the private folder."""
    process_exit.exit_with_launcher()
    board = PrivateFolder(folder)
    rank, size, limits = int(os.environ["RANK"]), job.placement.num_processes, job.settings.launch
    watchdog = Watchdog(rank, size, job.run, limits, lambda beat: beat.publish(board))
    watchdog.start()
    try:
        result = main(job, watchdog, folder=folder)
    except RunError as error:
        print(error, file=sys.stderr)
        process_exit.exit_now(ExitCode.FAILED)
    except BaseException as error:
        _leave_note(job.run, watchdog.process, error)
        raise
    if result is not None and result["status"] == "diverged":
        process_exit.exit_now(ExitCode.DIVERGED)  # other processes wait for messages until the launcher ends them
    watchdog.finish()
    process_exit.exit_now(ExitCode.COMPLETED)  # multiprocessing would wait for the user's threads and processes


def run_under_torchrun(
    job: Job,
    show: Show,
    on_end: Callable[[Job, str | None], None],
    interruption: Interruption,
    on_met: Callable[[Job], None] = lambda _job: None,
) -> dict[str, Any] | None:
    """The life of a process that an outer launcher started; the summary in the process of the last stage.

    Args:
        job: what to run.
        show: is given every record.
        on_end: called when a signal ends the run, with the job as all processes agreed on it, and the failure, if any.
        interruption: of the run; records the signal that ends it.
        on_met: called with the job as all processes agreed on it, before anything of the run is written.

    Raises:
        ConfigError: the processes differ in what they would train.
        KeyboardInterrupt: the run was interrupted, and the last stage, in another process, has left its summary.
    """

    def on_signal(_number: int) -> None:
        run, peers, name = watchdog.run, watchdog.peers, job.placement.name
        if peers is None or not peers.is_first():
            time.sleep(_PRECEDENCE_SECONDS)
        if run is not None:
            on_end(replace(job, run=run), peers.failure(name) if peers else named_failure(run, name))

    rank, size, limits = int(os.environ["RANK"]), job.placement.num_processes, job.settings.launch

    def met(job: Job) -> None:
        on_met(job)
        if rank == 0:
            note_begun(job)

    watchdog = Watchdog(rank, size, None, limits, on_signal=on_signal)
    watchdog.interruption = interruption
    watchdog.start()
    result = main(job, watchdog, show, met)
    if result is not None and result["status"] == "diverged":
        return result  # not finished: other processes, which wait for its messages, end when it does
    watchdog.finish()
    if rank == 0 and watchdog.peers is not None:
        watchdog.peers.outlast()
    if result is None and watchdog.gate.ended_after is not None:
        raise KeyboardInterrupt("interrupted")
    return result


def main(
    job: Job,
    watchdog: Watchdog,
    show: Show = lambda _record: None,
    on_met: Callable[[Job], None] = lambda _job: None,
    folder: Path | None = None,
) -> dict[str, Any] | None:
    """Runs the stages of this process, which a launcher started; the summary in the process of the last stage.

    Ends the process with exit code 75 when a neighbor is lost.

    Raises:
        ConfigError: the processes differ in what they would train.
        RunError: any other exception was raised; names the stage and the file with the traceback.
    """
    keep_freed_memory()
    activity = watchdog.activity
    open_files.raise_limit()
    try:
        with activity.wait("the other processes"):
            job, start, transport = join(job, folder)
    except LostStageError as error:
        if watchdog.run is not None:
            _leave_note(watchdog.run, watchdog.process, error)
        else:
            print(f"pipetrain: error: process {watchdog.process}: {error}", file=sys.stderr, flush=True)
        watchdog.lose()
    if job.finished:
        dist.destroy_process_group()
        return None
    on_met(job)
    board = monitoring_board(start) if folder is None else PrivateFolder(folder)
    watchdog.meet(board, job.run)
    if watchdog.publish is None and isinstance(board, SignedStore):
        limit = job.settings.launch.hang_timeout
        peers = PeerMonitor(watchdog.process, job.placement.num_processes, board, job.run, limit)
        with activity.wait("the other processes"):
            peers.meet(watchdog.heartbeat())
        watchdog.peers, watchdog.publish = peers, peers.exchange
    try:
        with _switched(job):
            return _run_stages(job, transport, show, watchdog)
    except BaseException as error:
        note = _leave_note(job.run, watchdog.process, error)
        stage, file = job.placement.name(watchdog.process), job.run.failure_traceback(watchdog.process)
        raise RunError(f"{stage} {note.line}; traceback in {file}") from error


def _leave_note(run: RunDirectory, rank: int, error: BaseException) -> FailureNote:
    """Leaves the note of a worker that raised an exception or lost another worker, and returns it."""
    is_lost = isinstance(error, LostStageError)
    failure = Failure.of(error.__cause__ or error if is_lost else error)  # torch's message
    if line := open_files.explained(failure.line):
        note = FailureNote(FailureKind.FAILED, line, failure.traceback)
    elif is_lost:
        note = FailureNote(FailureKind.LOST, f"{error} ({failure.line})", failure.traceback)
    else:
        note = FailureNote(FailureKind.FAILED, failure.line, failure.traceback)
    note.leave(run, rank)
    return note


def _run_stages(job: Job, transport: Transport, show: Show, watchdog: Watchdog) -> dict[str, Any] | None:
    activity, several = watchdog.activity, job.placement.several
    activity.now("building the data set and the model")
    hooks = RunHooks(
        on_operation=lambda r, operation: activity.now(f"{operation} of stage {r}" if several else str(operation)),
        on_progress=activity.now,
        waiting=activity.wait,
        computing=activity.compute,
        gate=watchdog.gate,
    )
    try:
        with training_session(job, hooks, show, watchdog.process, transport) as session:
            watchdog.begin()
            watchdog.reports.own = session.trainer.own_reports
            result = session.train()
    except DivergedError as error:
        sent = zip(job.placement.stages_of, watchdog.stop_others(), strict=True)
        reports = [report or [{}] * len(stages) for stages, report in sent]
        by_stage = reports_by_stage(job.placement.in_order(reports), session.trainer.executor.replicas)
        return session.diverge(error, by_stage)
    except LostStageError as error:
        _leave_note(job.run, watchdog.process, error)
        watchdog.lose()
    if watchdog.gate.ended_after is None:  # else messages of an evaluation may still be expected
        dist.destroy_process_group()
    return result
