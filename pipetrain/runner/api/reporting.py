"""Terminal output and files around a run: the plan before, progress, the summary after."""

import contextlib
import io
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from pipetrain.engine.errors import one_line
from pipetrain.runner.config.settings_diff import changes_since
from pipetrain.runner.terminal.run_tables import next_steps, plan_table, summary_lines
from pipetrain.runner.terminal.text_table import counted
from pipetrain.runner.tracking import records
from pipetrain.runner.tracking.files import write_whole
from pipetrain.runner.tracking.progress import ProgressBar, RunLength
from pipetrain.runner.tracking.trackers.identity import store_ids, stored_ids
from pipetrain.runner.training.checkpoint import store
from pipetrain.runner.training.checkpoint.writer import remove_leftovers
from pipetrain.runner.training.job import Job


@dataclass
class Reporting:
    """Progress of a run, and its summary at the end, if any."""

    bar: ProgressBar
    summary: dict[str, Any] | None = None


@contextlib.contextmanager
def reporting(
    job: Job, hydra: DictConfig, *, writes: bool = True, shows: bool = True, quiet: bool = False
) -> Iterator[Reporting]:
    """Around a run: prints its plan, then its progress, and at the end its summary; nothing if `quiet`.

    An outer launcher's process that `writes` the run directory calls `begin` itself, once the processes have met; one
    `shows` progress and summary.
    """
    shows = shows and not quiet
    if writes:
        with contextlib.redirect_stdout(io.StringIO()) if quiet else contextlib.nullcontext():
            begin(job, hydra)
    starting = "the simulation"
    if not job.settings.executor.simulated:
        starting = counted(job.placement.num_processes, "process", "processes")
    timetable, log = job.timetable, job.settings.log
    bar = ProgressBar(
        RunLength(timetable.total_steps, timetable.steps_per_epoch, timetable.evaluations),
        f"starting {starting}",
        job.start_step,
        line_seconds=log.progress_seconds,
        hidden=not shows,
    )
    report = Reporting(bar)
    with contextlib.closing(bar):
        yield report
    if shows and report.summary is not None:
        print(*summary_lines(report.summary), sep="\n", flush=True)
        if report.summary["status"] == "completed" and hydra.mode is not RunMode.MULTIRUN and sys.stdout.isatty():
            print(next_steps(job.run.path, traced=job.settings.trace), flush=True)


def _take_over(job: Job, resume: Path) -> None:
    """Takes over the records of the run that is continued, and, if it is the same run, its ids in trackers."""
    run, source = job.run, store.home_of(resume)
    if source is None:  # the checkpoint has left its run
        run.tracker_ids.unlink(missing_ok=True)
        return
    records.copy_records_until(source, run, job.start_step)
    if any(each.changes_weights for each in changes_since(store.load_config(resume), job.settings)):
        run.tracker_ids.unlink(missing_ok=True)
    elif ids := stored_ids(source):
        store_ids(run, **ids)


def begin(job: Job, hydra: DictConfig) -> None:
    """Prints the plan, and writes the settings and the plan."""
    run = job.run
    print(*plan_table(job.plan, job.stage_devices), sep="\n")
    for note in job.notes:
        print(one_line(note))
    if job.resume:
        print(one_line(f"continuing {job.resume}"))
        if drains := store.load_progress(job.resume).get("extra_drains"):
            where = f"the pipeline drained after step {drains[0]}, where the settings have no drain"
            print(one_line(f"{where}; a run that is not interrupted has other bits"))
    elif job.settings.resume == "auto":
        print("resume=auto: no unfinished run of this configuration; starting from the beginning")
    print(one_line(f"writing to {run}"), flush=True)
    remove_leftovers(run.path)
    # archives an earlier run, or its checkpoints after the resumed one
    resume = job.resume
    if resume is not None and job.resumes_itself:
        run.summary.unlink(missing_ok=True)  # of the previous part, which has not ended if this one fails
        if aside := run.archive_checkpoints_after(resume):
            print(one_line(f"the checkpoints after {resume.name} are now in {aside}"), flush=True)
    elif aside := run.archive_previous_run():
        print(one_line(f"an earlier run's files are now in {aside}"), flush=True)
    if resume is not None:
        _take_over(job, resume)
    run.summary.unlink(missing_ok=True)
    run.hydra.mkdir(exist_ok=True)
    stored = OmegaConf.to_yaml(OmegaConf.create(dict(job.settings.stored)))
    write_whole(run.config, stored)
    write_whole(run.hydra / "config.yaml", stored)
    write_whole(run.hydra / "hydra.yaml", OmegaConf.to_yaml(OmegaConf.create({"hydra": hydra})))
    write_whole(run.hydra / "overrides.yaml", OmegaConf.to_yaml(hydra.overrides.task))
    write_whole(run.plan, json.dumps(job.plan.to_json(), indent=2) + "\n")
