"""One run as the command line sees it: prepare, show the plan, train, report."""

import contextlib
import json
import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipetrain.commands.error_line import report_error
from pipetrain.config.settings import settings_of
from pipetrain.errors import ConfigError, ExitCode
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
            with contextlib.suppress(OSError):
                folder.rmdir()  # Hydra made it; a directory in use is not empty, and stays
            return report_error(error, ExitCode.WRONG_USAGE, debug=bool(config.get("debug")))
        if "RANK" in os.environ:
            return _join(prepared, hydra)
        return _lead(prepared, hydra)


def _lead(prepared: "PreparedRun", hydra: DictConfig) -> ExitCode:
    """This process starts the others, or simulates them, and alone writes to the terminal."""
    from pipetrain.tracking.progress import ProgressBar

    job = prepared.job
    _begin(prepared, hydra)
    bar = ProgressBar(job.timetable.total_steps, job.settings.train.epochs, prepared.start_step)
    try:
        summary = _carry_out(job, bar, prepared.start_step)
    except KeyboardInterrupt as interrupt:
        _leave_summary(job, "interrupted", str(interrupt))
        bar.close()
        print(f"interrupted; partial results are in {job.run}", flush=True)
        raise
    except Exception as error:
        log.exception("the run failed")
        _leave_summary(job, "failed", str(error))
        code = ExitCode.WRONG_USAGE if isinstance(error, ConfigError) else ExitCode.FAILED
        return report_error(error, code, debug=job.settings.debug)
    finally:
        bar.close()
    print(*summary_lines(summary), sep="\n", flush=True)
    if summary["status"] == "diverged":
        return report_error(RuntimeError(summary["reason"]), ExitCode.DIVERGED)
    return ExitCode.COMPLETED


def _carry_out(job: "Job", bar: "ProgressBar", start_step: int) -> dict[str, Any]:
    from pipetrain.tracking.progress import Follower

    if job.settings.executor.simulated:
        from pipetrain.launch.worker import simulate

        return simulate(job, bar.update)
    from pipetrain.launch.launcher import launch

    with contextlib.closing(Follower(job.run, bar, start_step)):
        return launch(job)


def _join(prepared: "PreparedRun", hydra: DictConfig) -> ExitCode:
    """An outer launcher (torchrun, Slurm) started this process as one of the workers."""
    from pipetrain.launch.worker import main
    from pipetrain.tracking.progress import ProgressBar

    job, rank, size = prepared.job, int(os.environ["RANK"]), int(os.environ.get("WORLD_SIZE", "0"))
    places = job.placement
    wrong = None
    if job.settings.executor.simulated:
        wrong = f"executor={job.settings.executor.name} runs in one process, and RANK is set: start it without torchrun"
    elif size != places.num_processes:
        needed = "as many" if places.num_processes == job.num_stages else str(places.num_processes)
        wrong = f"WORLD_SIZE={size}: partition.stages={job.num_stages} needs {needed} processes"
    if wrong is not None:
        return report_error(ConfigError(wrong), ExitCode.WRONG_USAGE, debug=job.settings.debug)
    if rank == 0:
        _begin(prepared, hydra)
    last = rank == places.of_last_stage
    bar = ProgressBar(job.timetable.total_steps, job.settings.train.epochs, prepared.start_step) if last else None
    show = bar.update if bar else lambda record: None
    try:
        # there is no parent of ours to say how the run ended
        summary = main(job, show, lambda: _leave_summary(job, "interrupted", "signal") if rank == 0 else None)
    except Exception as error:
        if rank == 0:
            _leave_summary(job, "failed", str(error))
        raise
    if bar and summary:
        bar.close()
        print(*summary_lines(summary), sep="\n", flush=True)
    return ExitCode.COMPLETED


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


def _leave_summary(job: "Job", status: str, reason: str) -> None:
    """What is known of a run whose workers did not finish it."""
    from pipetrain.tracking import metrics_file
    from pipetrain.tracking import summary as summaries

    if summaries.read(job.run) is not None:
        return
    records = metrics_file.read(job.run)
    evaluations = [record["eval"] for record in records if "eval" in record]
    summaries.write(
        job.run,
        {
            "status": status,
            **job.head(),
            "reason": reason,
            "steps": records[-1]["step"] if records else 0,
            "epochs": sum("per_stage" in record for record in records),
            "wall_s": records[-1]["wall_s"] if records else 0.0,
            "final": evaluations[-1] if evaluations else {},
            "per_stage": job.plan,
        },
    )


@contextlib.contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """SIGTERM ends a run as Ctrl-C does."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
