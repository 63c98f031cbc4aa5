"""One run as the command line sees it: prepare, show the plan, train, report."""

import contextlib
import os
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from pipetrain.commands.run.ending import (
    command_to_continue,
    ended_as,
    failed_early,
    how_to_continue,
    never_began,
    remove_empty_run,
)
from pipetrain.engine import outer_launcher
from pipetrain.engine.errors import ConfigError, DataError, ExitCode, one_line
from pipetrain.engine.failure import USERS_ERRORS
from pipetrain.runner.api.one_run import carried_out, prepared
from pipetrain.runner.config.composition import Composition
from pipetrain.runner.launch.process_exit import exit_now
from pipetrain.runner.launch.signals import Interruption, interruptible
from pipetrain.runner.terminal.error_line import message, report_error
from pipetrain.runner.terminal.output_folder import check_writable
from pipetrain.runner.tracking.run_directory import RunDirectory

if TYPE_CHECKING:
    from pipetrain.runner.training.job import Job

_PRECEDENCE_SECONDS = 1.0
"""Seconds given to the process that explains an error, before an outer launcher ends all for the end of another."""


def run(
    config: DictConfig, choices: dict[str, str], folder: Path, hydra: DictConfig, sweep: Path | None = None
) -> ExitCode:
    """Carries out one run in its directory; returns its exit code. Errors are shown, so that a sweep continues.

    `sweep` is the folder of the sweep that the run belongs to, if there is one.

    Raises:
        KeyboardInterrupt: Ctrl-C or SIGTERM, after the run has ended its processes.
    """
    directory, debug = RunDirectory(folder), bool(config.get("debug"))
    composition = Composition(config, choices, hydra)
    leads = outer_launcher.leads()  # any other process has the working directory in place of the run's
    with interruptible() as interruption, contextlib.ExitStack() as lock:
        try:
            if leads:
                check_writable(f"hydra.run.dir={folder}", folder)
            job = prepared(composition, directory, lock, sweep=sweep)
            if outer_launcher.is_present():
                _check_launcher(job)
            interruption.check()
        except (ConfigError, DataError, OmegaConfBaseException) as error:
            lock.close()
            if leads:
                remove_empty_run(directory)
            return report_error(error, ExitCode.WRONG_USAGE, debug=debug)
        except KeyboardInterrupt:
            lock.close()
            never_began([directory] if leads else [])
            raise
        except USERS_ERRORS as error:
            interruption.check()
            return failed_early(error, directory, debug=debug)
        if outer_launcher.is_present():
            return _run_with_others(job, hydra, interruption, lock)
        code = _run_as_launcher(job, composition, interruption)
        if hydra.get("mode") is RunMode.MULTIRUN:
            interruption.check()  # however this run has ended, no other of the sweep begins
        return code


def _run_as_launcher(job: "Job", composition: Composition, interruption: Interruption) -> ExitCode:
    """Runs the stages from this process, which starts the workers or simulates them."""
    if job.finished:
        _report_finished(job)
        return ExitCode.COMPLETED
    hydra = composition.hydra
    try:
        summary = carried_out(job, composition, interruption, partial(command_to_continue, job, hydra))
    except ConfigError as error:
        return report_error(error, ExitCode.WRONG_USAGE, debug=job.settings.debug)
    except USERS_ERRORS as error:
        return failed_early(error, job.run, debug=job.settings.debug)
    return ended_as(job, summary, hydra)


def _report_finished(job: "Job") -> None:
    done = f"{job.run} has completed all its {job.start_step} steps"
    print(one_line(f"resume={job.settings.resume}: {done}; nothing is left to do"))


def _run_with_others(job: "Job", hydra: DictConfig, interruption: Interruption, lock: contextlib.ExitStack) -> ExitCode:
    """Runs this process's part. If the processes disagree on what to train, rank 0 reports the difference."""
    try:
        return _run_as_worker(job, hydra, interruption)
    except ConfigError as error:
        lock.close()
        if not outer_launcher.leads():
            time.sleep(_PRECEDENCE_SECONDS)
            exit_now(ExitCode.WRONG_USAGE)
        remove_empty_run(job.run)
        exit_now(report_error(error, ExitCode.WRONG_USAGE, debug=job.settings.debug))


class _Beginning:
    """Begins a run in its directory once the processes have met, in the one that writes."""

    def __init__(self, hydra: DictConfig) -> None:
        self.done = False
        self._hydra = hydra

    def __call__(self, job: "Job") -> None:
        from pipetrain.runner.api.reporting import begin

        if outer_launcher.leads():
            self.done = True
            job.run.forget_failures()
            begin(job, self._hydra)


def _run_as_worker(job: "Job", hydra: DictConfig, interruption: Interruption) -> ExitCode:
    """Runs the stages of this process, which an outer launcher (torchrun, Slurm) started as one of the workers.

    Raises:
        ConfigError: the processes differ in what they would train; nothing is written yet.
    """
    from pipetrain.runner.api.reporting import reporting
    from pipetrain.runner.launch.worker import run_under_torchrun
    from pipetrain.runner.training.outcome import ensure_summary

    beginning = _Beginning(hydra)
    if job.finished:
        _report_finished(job)
    try:
        shows = int(os.environ["RANK"]) == job.placement.of_last_stage
        with reporting(job, hydra, writes=False, shows=shows) as report:
            report.summary = run_under_torchrun(job, report.bar.update, _report_end, interruption, beginning)
        interrupted = report.summary is not None and report.summary["status"] == "interrupted"
    except KeyboardInterrupt:
        interrupted = True
    except ConfigError:
        raise
    except Exception as error:
        if beginning.done:
            ensure_summary(job, "failed", message(error))
        exit_now(report_error(error, ExitCode.FAILED, debug=job.settings.debug))
    if interrupted:
        if beginning.done:
            print(one_line(how_to_continue(job, hydra)), flush=True)
        exit_now(ExitCode.PREEMPTED if interruption.preempts else ExitCode.INTERRUPTED)
    if report.summary is not None and report.summary["status"] == "diverged":
        exit_now(ended_as(job, report.summary, hydra))
    return ExitCode.COMPLETED


def _report_end(job: "Job", failure: str | None) -> None:
    """Writes and prints how a run without our launcher ended; any process may, as rank 0 may have failed."""
    from pipetrain.runner.tracking import summary
    from pipetrain.runner.training.outcome import ensure_summary

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
        asked = f"partition.stages={job.num_stages}"
        if job.plan.replicas is not None:
            asked = f"partition.replicas={list(job.plan.replicas)}"
        raise ConfigError(f"WORLD_SIZE={size}: {asked} needs {placement.num_processes} processes")
