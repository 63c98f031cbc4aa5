"""Restarts: a run whose worker failed resumes automatically, from its newest complete checkpoint."""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pipetrain.launch.launcher import WorkerError
from pipetrain.launch.signals import Interruption
from pipetrain.run.checkpoint import store
from pipetrain.run.checkpoint.writer import remove_leftovers
from pipetrain.run.job import Job
from pipetrain.tracking import records, run_disk

log = logging.getLogger(__name__)

Attempt = Callable[[Job], dict[str, Any]]
"""Starts the workers, and returns their summary."""
Report = Callable[[str, int], None]
"""Receives a one-line description of the failure and the step from which the run resumes."""


def with_restarts(job: Job, attempt: Attempt, interruption: Interruption, report: Report) -> dict[str, Any]:
    """Runs a job, restarting it up to `launch.max_restarts` times if a worker dies or hangs; returns its summary.

    Each start has the checkpoint's bits and drains where the configuration says, so the numbers are those of a run in
    which nothing failed.

    Args:
        job: the run.
        attempt: carries it out once.
        interruption: of the run; a run that a signal ends is not restarted.
        report: informs the user of a restart.

    Raises:
        WorkerError: a worker failed once more, or the run directory takes no more files.
    """
    most = job.settings.launch.max_restarts
    for restart in range(1, most + 1):
        try:
            return attempt(job)
        except WorkerError as error:
            interruption.check()
            if run_disk.is_removed(job.run) or run_disk.shortage(job.run, error):
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
    own = store.newest_whole(run.path).folder
    run.archive_checkpoints_after(own)
    if own or (source and source.parent == run.checkpoints.resolve()):
        source = own  # else the checkpoint of another run, if this run began with one
    records.copy_records_until(run, run, store.step_of(source) if source else 0)
    return replace(job, resume=source)
