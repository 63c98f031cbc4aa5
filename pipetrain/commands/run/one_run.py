"""One run as the command line sees it: prepare, show the plan, train, report."""

import contextlib
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from pipetrain.commands.output_folder import check_writable
from pipetrain.commands.run.ending import (
    ended_as,
    ended_early,
    failed_early,
    how_to_continue,
    never_began,
    remove_empty_run,
)
from pipetrain.config.composition import check_hydra, settings_of
from pipetrain.errors import ConfigError, DataError, ExitCode
from pipetrain.launch import fork_server
from pipetrain.launch.master import is_torchruns
from pipetrain.launch.process_exit import exit_now
from pipetrain.launch.signals import Interruption, interruptible
from pipetrain.libraries.imports import gc_paused
from pipetrain.report.error_line import message, report_error
from pipetrain.tracking.files import finish_archiving
from pipetrain.tracking.progress import status
from pipetrain.tracking.run_directory import RunDirectory
from pipetrain.tracking.run_lock import locked

if TYPE_CHECKING:
    from pipetrain.config.settings import Settings
    from pipetrain.tracking.progress import ProgressBar
    from pipetrain.training.job import Job


def run(
    config: DictConfig, choices: dict[str, str], folder: Path, hydra: DictConfig, sweep: Path | None = None
) -> ExitCode:
    """Carries out one run in its directory; returns its exit code. Errors are shown, so that a sweep continues.

    `sweep` is the folder of the sweep that the run belongs to, if there is one.

    Raises:
        KeyboardInterrupt: Ctrl-C or SIGTERM, after the run has ended its processes.
    """
    directory = RunDirectory(folder)
    with interruptible() as interruption, contextlib.ExitStack() as lock:
        try:
            check_writable(f"hydra.run.dir={folder}", folder)
            check_hydra(hydra)
            settings = settings_of(config, choices)
            if os.environ.get("RANK", "0") == "0":  # of an outer launcher's processes, rank 0 alone writes
                lock.enter_context(locked(directory.path))
                directory.check_own()
                finish_archiving(directory.path)
                settings = _with_restart(settings, directory)
            else:  # rank 0 finds the checkpoint to resume
                settings = replace(settings, resume=None)
            if not settings.executor.simulated and "RANK" not in os.environ:
                fork_server.start(settings.model.target.path, settings.dataset.target.path)
            with status("preparing the run", hidden=os.environ.get("RANK", "0") != "0"):
                # from here on torch is needed, which takes seconds to import
                with gc_paused("torch"):
                    from pipetrain.training.preflight import prepare

                job = prepare(settings, directory)
            job = replace(job, sweep=sweep)
            interruption.check()
        except (ConfigError, DataError, OmegaConfBaseException) as error:
            lock.close()
            remove_empty_run(directory)
            return report_error(error, ExitCode.WRONG_USAGE, debug=bool(config.get("debug")))
        except KeyboardInterrupt:
            lock.close()
            never_began([directory])
            raise
        except (SystemExit, Exception) as error:
            interruption.check()
            return failed_early(error, directory, debug=bool(config.get("debug")))
        if "RANK" in os.environ:
            return _run_as_worker(job, hydra, interruption)
        code = _run_as_launcher(job, hydra, interruption)
        if hydra.get("mode") is RunMode.MULTIRUN:
            interruption.check()  # however this run has ended, no other of the sweep begins
        return code


def _with_restart(settings: "Settings", directory: RunDirectory) -> "Settings":
    """The settings; a run that torchrun has restarted resumes from its own checkpoints."""
    if not is_torchruns():
        return settings
    from pipetrain.launch.rendezvous import restarted

    again = restarted() and (settings.resume is None or any(directory.checkpoints.glob("*")))
    return replace(settings, resume="auto") if again else settings


def _run_as_launcher(job: "Job", hydra: DictConfig, interruption: Interruption) -> ExitCode:
    """Runs the stages from this process, which starts the workers or simulates them."""
    from pipetrain.commands.run.reporting import reporting

    if job.finished:
        _report_finished(job)
        return ExitCode.COMPLETED
    try:
        with reporting(job, hydra) as report:
            if job.settings.executor.simulated:
                from pipetrain.launch.worker import run_simulated

                report.summary = run_simulated(job, report.bar.update, interruption)
            else:
                report.summary = _launch(job, report.bar, interruption)
            interruption.settle()
    except (KeyboardInterrupt, SystemExit, Exception) as error:
        interruption.settle()
        return ended_early(job, error, hydra)
    return ended_as(job, report.summary, hydra)


def _launch(job: "Job", bar: "ProgressBar", interruption: Interruption) -> dict[str, Any]:
    from pipetrain.launch.launcher import launch, with_restarts
    from pipetrain.tracking.progress import MetricsTail

    def attempt(job: "Job") -> dict[str, Any]:
        with contextlib.closing(MetricsTail(job.run, bar, bar.begun_at)):
            return launch(job, interruption)

    return with_restarts(job, attempt, interruption, bar.begin_again)


def _report_finished(job: "Job") -> None:
    steps = job.start_step
    print(f"resume={job.settings.resume}: {job.run} has completed all its {steps} steps; nothing is left to do")


def _run_as_worker(job: "Job", hydra: DictConfig, interruption: Interruption) -> ExitCode:
    """Runs the stages of this process, which an outer launcher (torchrun, Slurm) started as one of the workers."""
    from pipetrain.commands.run.reporting import reporting
    from pipetrain.launch.worker import run_under_torchrun
    from pipetrain.training.outcome import ensure_summary

    rank = int(os.environ["RANK"])
    try:
        _check_launcher(job)
    except ConfigError as error:
        return report_error(error, ExitCode.WRONG_USAGE, debug=job.settings.debug)
    if job.finished:
        _report_finished(job)
    writes = rank == 0 and not job.finished

    if writes:
        job.run.forget_failures()
    try:
        with reporting(job, hydra, writes=writes, shows=rank == job.placement.of_last_stage) as report:
            report.summary = run_under_torchrun(job, report.bar.update, _report_end, interruption)
        interrupted = report.summary is not None and report.summary["status"] == "interrupted"
    except KeyboardInterrupt:
        interrupted = True
    except Exception as error:
        if writes:
            ensure_summary(job, "failed", message(error))
        exit_now(report_error(error, ExitCode.FAILED, debug=job.settings.debug))
    if interrupted:
        if writes:
            print(how_to_continue(job, hydra), flush=True)
        exit_now(ExitCode.PREEMPTED if interruption.preempts else ExitCode.INTERRUPTED)
    if report.summary is not None and report.summary["status"] == "diverged":
        exit_now(ended_as(job, report.summary, hydra))
    return ExitCode.COMPLETED


def _report_end(job: "Job", failure: str | None) -> None:
    """Writes and prints how a run without our launcher ended; any process may, as rank 0 may have failed."""
    from pipetrain.tracking import summary
    from pipetrain.training.outcome import ensure_summary

    is_known = summary.read(job.run) is not None
    ensure_summary(job, "failed" if failure else "interrupted", failure or "a signal")
    if failure and not is_known:
        os.write(2, f"pipetrain: error: {failure}; logs in {job.run.logs}\n".encode())


def _check_launcher(job: "Job") -> None:
    size, placement = int(os.environ.get("WORLD_SIZE", "0")), job.placement
    if job.settings.executor.simulated:
        raise ConfigError("executor=simulated runs in one process, and RANK is set: start it without torchrun")
    if restarts := job.settings.launch.max_restarts:
        raise ConfigError(
            f"launch.max_restarts={restarts}: only the outer launcher of this process can restart all processes; "
            f"torchrun takes --max-restarts={restarts}"
        )
    if size != placement.num_processes:
        needed = "as many" if placement.num_processes == job.num_stages else str(placement.num_processes)
        asked = f"partition.stages={job.num_stages}"
        if job.plan.replicas is not None:
            asked = f"partition.replicas={list(job.plan.replicas)}"
        raise ConfigError(f"WORLD_SIZE={size}: {asked} needs {needed} processes")
