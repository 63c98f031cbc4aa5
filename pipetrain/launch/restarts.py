"""Restarts: a run whose worker failed resumes automatically, from its newest complete checkpoint."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipetrain.launch.launcher import WorkerError
from pipetrain.launch.signals import Interruption
from pipetrain.run.checkpoint import store
from pipetrain.run.checkpoint.writer import remove_leftovers
from pipetrain.run.job import Job
from pipetrain.tracking import records, run_disk

log = logging.getLogger(__name__)

Attempt = Callable[[Job], dict[str, Any]]
"""Starts the workers, and returns the summary that they left."""
Tell = Callable[[str, int], None]
"""Called with a one-line description of the failure and the step from which the run resumes."""


def with_restarts(job: Job, attempt: Attempt, interruption: Interruption, tell: Tell) -> dict[str, Any]:
    """Runs a job, restarting it up to `launch.max_restarts` times if a worker dies or hangs; returns its summary.

    Each start has the checkpoint's bits and drains where the configuration says, so the numbers are those of a run in
    which nothing failed.

    Args:
        job: the run.
        attempt: carries it out once.
        interruption: of the run; one that has been asked to end is not started again.
        tell: informs the user of a restart.

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
            job = _from_newest(job)
            where, logs = _place(job.resume), job.run.archive_logs()
            told = f"{error.reason}; restart {restart} of {most}, {where}; logs in {logs}"
            log.warning(told)
            tell(told, _step(job.resume))
    return attempt(job)


def _from_newest(job: Job) -> Job:
    """The job, resumed from the newest complete checkpoint; records of later steps are removed from its directory."""
    run = job.run
    remove_leftovers(run.path)
    own, _ = store.newest_whole(run.path)
    run.archive_checkpoints_after(own)
    source = own or _elsewhere(job)
    records.copy_records_until(run, run, _step(source))
    return replace(job, resume=source)


def _elsewhere(job: Job) -> Path | None:
    """The checkpoint of another run from which this run was started."""
    resume = job.resume
    return resume if resume is not None and resume.parent != job.run.checkpoints.resolve() else None


def _step(resume: Path | None) -> int:
    return 0 if resume is None else store.step_of(resume)


def _place(resume: Path | None) -> str:
    return "from the beginning" if resume is None else f"from the checkpoint of step {store.step_of(resume)}"
