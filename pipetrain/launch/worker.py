"""The life of a process that runs stages: alone, started by our launcher, or by an outer one."""

import os
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch.distributed as dist

from pipetrain.arithmetic import switched
from pipetrain.errors import DivergedError, ExitCode, LostStageError, RunError
from pipetrain.executors.admission_gate import AdmissionGate
from pipetrain.executors.hooks import RunHooks
from pipetrain.executors.pipeline import build_stages, connect_stages
from pipetrain.failure import Failure
from pipetrain.launch import process_exit
from pipetrain.launch.failure_note import FailureKind, FailureNote, named_failure
from pipetrain.launch.graceful_stop import drain_on_signal
from pipetrain.launch.monitor import PeerMonitor
from pipetrain.launch.rendezvous import START, ProcessEnvironment, join, monitoring_store
from pipetrain.launch.signals import Interruption
from pipetrain.launch.watchdog import Watchdog
from pipetrain.run.builders.machine import device_at, freed_memory_kept, keep_freed_memory
from pipetrain.run.job import Job
from pipetrain.run.outcome import reports_by_stage
from pipetrain.run.session import TrainingSession
from pipetrain.run.worker_components import build_single_process, build_worker_components
from pipetrain.stage.measurements import reset_peak_memory
from pipetrain.tracking.run_recorder import Show

_PRECEDENCE_SECONDS = 1.0
"""Seconds given to one process to report how the run ended, before other processes try."""


def run_simulated(job: Job, show: Show, interruption: Interruption) -> dict[str, Any]:
    """Runs all stages in this process; the summary, which is also written.

    Args:
        job: what to run.
        show: is given every record.
        interruption: of the run; takes note of every signal, even of one that comes too late for it.
    """
    with freed_memory_kept(), _switched(job):
        return _simulate(job, show, interruption)


def _switched(job: Job) -> AbstractContextManager[None]:
    """torch's switches as the settings have them."""
    return switched(job.device, deterministic=job.settings.deterministic, tf32=job.settings.train.tf32)


def _simulate(job: Job, show: Show, interruption: Interruption) -> dict[str, Any]:
    device = device_at(job.device, 0)
    reset_peak_memory(device)
    parts = build_worker_components(job, range(job.num_stages), device, show)
    gate = AdmissionGate(alone=True)
    hooks = RunHooks(parts.on_step, trace=parts.trace, gate=gate)
    executor = build_single_process(job, parts, hooks)
    run = TrainingSession(job, parts, executor)

    def stop() -> bool:
        gate.end()
        return True

    try:
        with drain_on_signal(stop, job.settings.launch.stop_timeout, interruption):
            result = run.train() or {}
            interruption.settle()
            return result
    except DivergedError as error:
        return run.diverge(error, run.trainer.reports())


def run_spawned(job: Job) -> None:
    """The life of a process that our launcher started."""
    process_exit.exit_with_launcher()
    store = monitoring_store(os.environ[START])
    rank, size, limits = int(os.environ["RANK"]), job.placement.num_processes, job.settings.launch
    watchdog = Watchdog(rank, size, job.run, limits, lambda beat: beat.publish(store))
    watchdog.start()
    try:
        result = main(job, watchdog)
    except RunError as error:
        print(error, file=sys.stderr)
        process_exit.exit_now(ExitCode.FAILED)
    except BaseException as error:
        _note_failure(job, watchdog.process, error)
        raise
    if result is not None and result["status"] == "diverged":
        process_exit.exit_now(ExitCode.DIVERGED)  # the others wait for messages, and the launcher ends them
    watchdog.finish()
    process_exit.exit_now(ExitCode.COMPLETED)  # multiprocessing would wait for threads and processes of the user's own


OnEnd = Callable[[Job, str | None], None]
"""Called when a signal ends a run: with the job as all agreed on it, and the failure, or None if no worker failed."""


def run_under_torchrun(job: Job, show: Show, on_end: OnEnd, interruption: Interruption) -> dict[str, Any] | None:
    """The life of a process that an outer launcher started, until it ends; the summary where the last stage is.

    Args:
        job: what to run.
        show: is given every record.
        on_end: reports how the run ended if no other process does.
        interruption: of the run; takes note of the signal that breaks it off.

    Raises:
        KeyboardInterrupt: the run was interrupted, and the last stage, in another process, has left its summary.
    """

    def on_signal(_number: int) -> None:
        run, peers, name = watchdog.run, watchdog.peers, job.placement.name
        if peers is None or not peers.is_first():
            time.sleep(_PRECEDENCE_SECONDS)
        if run is not None:
            on_end(replace(job, run=run), peers.failure(name) if peers else named_failure(run, name))

    rank, size, limits = int(os.environ["RANK"]), job.placement.num_processes, job.settings.launch
    watchdog = Watchdog(rank, size, None if rank else job.run, limits, on_signal=on_signal)
    watchdog.interruption = interruption
    watchdog.start()
    result = main(job, watchdog, show)
    if result is not None and result["status"] == "diverged":
        return result  # not finished: the others, which wait for its messages, are to end when it does
    watchdog.finish()
    if result is None and watchdog.gate.ended_after is not None:
        raise KeyboardInterrupt("broken off")
    return result


def main(job: Job, watchdog: Watchdog, show: Show = lambda _record: None) -> dict[str, Any] | None:
    """Runs the stages of this process, which a launcher started; the summary where the last stage is.

    Ends the process with exit code 75 when a neighbor is lost.

    Raises:
        RunError: anything else was raised, by the user's code or ours; names the stage and the note with the traceback.
    """
    keep_freed_memory()
    activity = watchdog.activity
    try:
        with activity.wait("the other processes"):
            process, job = join(job)
    except LostStageError as error:
        if watchdog.run is not None:
            _note_of(error).leave(watchdog.run, watchdog.process)
        watchdog.lose()
    if job.finished:
        dist.destroy_process_group()
        return None
    store = monitoring_store(process.start)
    watchdog.meet(store, job.run)
    if watchdog.publish is None:
        limit = job.settings.launch.hang_timeout
        peers = PeerMonitor(process.rank, job.placement.num_processes, store, job.run, limit)
        with activity.wait("the other processes"):
            peers.meet(watchdog.heartbeat())
        watchdog.peers, watchdog.publish = peers, peers.exchange
    try:
        with _switched(job):
            return _run_stages(job, process, show, watchdog)
    except BaseException as error:
        note = _note_failure(job, process.rank, error)
        stage, file = job.placement.name(process.rank), job.run.failure_traceback(process.rank)
        raise RunError(f"{stage} {note.line}; traceback in {file}") from error


def _note_failure(job: Job, rank: int, error: BaseException) -> FailureNote:
    """Leaves the note of a worker that raised an exception, and returns it."""
    failure = Failure.of(error)
    note = FailureNote(FailureKind.FAILED, failure.line, failure.traceback)
    note.leave(job.run, rank)
    return note


def _note_of(error: LostStageError) -> FailureNote:
    """Note of a worker that lost another worker, with torch's message."""
    failure = Failure.of(error.__cause__ or error)
    return FailureNote(FailureKind.LOST, f"{error} ({failure.line})", failure.traceback)


def _run_stages(job: Job, process: ProcessEnvironment, show: Show, watchdog: Watchdog) -> dict[str, Any] | None:
    activity = watchdog.activity
    activity.now("building the data set and the model")
    placement = process.placement
    parts = build_worker_components(job, process.stages, process.device, show, process.replica)
    stages = build_stages(parts.chain, job.bounds, parts.training, process.stages, process.replica)
    hooks = RunHooks(
        parts.on_step, lambda op: activity.now(str(op)), activity.now, activity.wait, activity.compute, parts.trace,
        watchdog.gate,
    )  # fmt: skip
    try:
        activity.now("connecting the stages")
        with activity.wait("the other processes"):
            executor = connect_stages(stages, parts.phases, hooks, parts.training.clip_norm, process.transport)
        watchdog.begin()
        run = TrainingSession(job, parts, executor)
        watchdog.reports.own = run.trainer.own_reports
        result = run.train()
    except DivergedError as error:
        sent = zip(placement.stages_of, watchdog.stop_others(), strict=True)
        reports = [report or [{}] * len(expected) for expected, report in sent]
        return run.diverge(error, reports_by_stage(placement.in_order(reports), executor.replicas))
    except LostStageError as error:
        _note_of(error).leave(job.run, process.rank)
        watchdog.lose()
    if watchdog.gate.ended_after is None:  # else messages are still expected that will never come
        dist.destroy_process_group()
    return result
