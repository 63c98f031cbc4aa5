"""One run as the command line sees it: prepare, show the plan, train, report."""

import contextlib
import json
import logging
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipetrain.config.settings import settings_of
from pipetrain.errors import ConfigError, ExitCode
from pipetrain.report.error_line import report_error
from pipetrain.report.run_tables import plan_table, summary_lines
from pipetrain.tracking.run_directory import RunDirectory

if TYPE_CHECKING:
    from pipetrain.run.job import Job
    from pipetrain.run.preflight import PreparedRun
    from pipetrain.tracking.progress import ProgressBar

log = logging.getLogger(__name__)


def run(config: DictConfig, choices: dict[str, str], folder: Path, hydra: DictConfig) -> ExitCode:
    """Carries out one run in its directory; its exit code. Errors are shown, not raised, so that a sweep goes on.

    Args:
        config: as composed.
        choices: what was chosen of each group.
        folder: the run directory.
        hydra: Hydra's own settings, kept beside the run's.

    Raises:
        KeyboardInterrupt: Ctrl-C or SIGTERM, after the run has ended its processes.
    """
    with _sigterm_interrupts():
        try:
            settings = settings_of(config, choices)
            # from here on torch is needed, which takes seconds to import
            from pipetrain.run.preflight import prepare

            prepared = prepare(settings, RunDirectory(folder))
        except (ConfigError, OmegaConfBaseException) as error:
            RunDirectory(folder).remove_if_empty()
            return report_error(error, ExitCode.WRONG_USAGE, debug=bool(config.get("debug")))
        if "RANK" in os.environ:
            return _join(prepared, hydra)
        return _lead(prepared, hydra)


def _lead(prepared: "PreparedRun", hydra: DictConfig) -> ExitCode:
    """This process starts the others, or simulates them, and alone writes to the terminal."""
    job = prepared.job
    try:
        with _reporting(prepared, hydra) as reporting:
            summary = reporting.summary = _carry_out(job, reporting, prepared.start_step)
    except KeyboardInterrupt:
        print(f"interrupted; partial results are in {job.run}", flush=True)
        raise
    except Exception as error:
        log.exception("the run failed")
        code = ExitCode.WRONG_USAGE if isinstance(error, ConfigError) else ExitCode.FAILED
        return report_error(error, code, debug=job.settings.debug)
    if summary["status"] == "diverged":
        return report_error(RuntimeError(summary["reason"]), ExitCode.DIVERGED)
    return ExitCode.COMPLETED


def _carry_out(job: "Job", reporting: "_Reporting", start_step: int) -> dict[str, Any]:
    from pipetrain.tracking.progress import Follower

    if job.settings.executor.simulated:
        from pipetrain.launch.worker import simulate

        return simulate(job, reporting.bar.update)
    from pipetrain.launch.launcher import launch

    with contextlib.closing(Follower(job.run, reporting.bar, start_step)):
        return launch(job)


def _join(prepared: "PreparedRun", hydra: DictConfig) -> ExitCode:
    """An outer launcher (torchrun, Slurm) started this process as one of the workers."""
    from pipetrain.launch.worker import main
    from pipetrain.run.outcome import leave_summary

    job, rank = prepared.job, int(os.environ["RANK"])
    try:
        _check_launcher(job)
    except ConfigError as error:
        return report_error(error, ExitCode.WRONG_USAGE, debug=job.settings.debug)
    writes = rank == 0

    def on_signal() -> None:
        if writes:  # there is no parent of ours to say how the run ended
            leave_summary(job, "interrupted", "signal")

    with _reporting(prepared, hydra, writes=writes, shows=rank == job.placement.of_last_stage) as reporting:
        reporting.summary = main(job, reporting.bar.update, on_signal)
    return ExitCode.COMPLETED


def _check_launcher(job: "Job") -> None:
    size, placement = int(os.environ.get("WORLD_SIZE", "0")), job.placement
    if job.settings.executor.simulated:
        raise ConfigError("executor=simulated runs in one process, and RANK is set: start it without torchrun")
    if size != placement.num_processes:
        needed = "as many" if placement.num_processes == job.num_stages else str(placement.num_processes)
        raise ConfigError(f"WORLD_SIZE={size}: partition.stages={job.num_stages} needs {needed} processes")


@dataclass
class _Reporting:
    """What a process shows of a run: its progress, and at the end its summary, where it has one."""

    bar: "ProgressBar"
    summary: dict[str, Any] | None = None


@contextlib.contextmanager
def _reporting(
    prepared: "PreparedRun", hydra: DictConfig, *, writes: bool = True, shows: bool = True
) -> Iterator[_Reporting]:
    """Around a run: what is known before it, its progress and, however it ends, what it came to.

    Args:
        prepared: the run.
        hydra: Hydra's own settings.
        writes: whether the run directory is this process's to write.
        shows: whether the terminal is.
    """
    from pipetrain.run.outcome import leave_summary
    from pipetrain.tracking.progress import ProgressBar

    job = prepared.job
    if writes:
        _begin(prepared, hydra)
    bar = ProgressBar(job.timetable.total_steps, job.settings.train.epochs, prepared.start_step, hidden=not shows)
    reporting = _Reporting(bar)
    try:
        yield reporting
    except (KeyboardInterrupt, Exception) as error:
        if writes:
            leave_summary(job, "failed" if isinstance(error, Exception) else "interrupted", str(error))
        raise
    finally:
        bar.close()
    if shows and reporting.summary is not None:
        print(*summary_lines(reporting.summary), sep="\n", flush=True)


def _begin(prepared: "PreparedRun", hydra: DictConfig) -> None:
    """Shows the partition, and writes what is known before the run."""
    job, run = prepared.job, prepared.job.run
    print(*plan_table(prepared.plan, prepared.devices), sep="\n")
    for note in prepared.notes:
        print(note)
    if job.resume:
        print(f"continuing {job.resume}")
    elif job.settings.resume == "auto":
        print("resume=auto: no unfinished run of this configuration; starting afresh")
    print(f"writing to {run}", flush=True)
    run.path.mkdir(parents=True, exist_ok=True)
    if job.resume is None and (aside := run.set_aside()):
        print(f"an earlier run's files are now in {aside}")
    run.summary.unlink(missing_ok=True)
    run.hydra.mkdir(exist_ok=True)
    stored = OmegaConf.create(dict(job.settings.stored))
    OmegaConf.save(stored, run.config)
    OmegaConf.save(stored, run.hydra / "config.yaml")
    OmegaConf.save(OmegaConf.create({"hydra": hydra}), run.hydra / "hydra.yaml")
    OmegaConf.save(hydra.overrides.task, run.hydra / "overrides.yaml")
    run.plan.write_text(json.dumps(prepared.plan.to_json(), indent=2) + "\n")


@contextlib.contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """SIGTERM ends a run as Ctrl-C does."""

    def interrupt(number: int, _frame: Any) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
