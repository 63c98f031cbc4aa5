"""Prepares and carries out one run, for the command and for Python programs. Errors are raised, not shown."""

import contextlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipetrain.data.libraries.imports import gc_paused
from pipetrain.engine import outer_launcher
from pipetrain.engine.errors import ConfigError, RunError
from pipetrain.engine.failure import USERS_ERRORS, described, is_disk_full
from pipetrain.runner.config.composition import Composition, check_hydra, settings_of
from pipetrain.runner.config.given_objects import with_objects
from pipetrain.runner.launch import fork_server
from pipetrain.runner.launch.master import is_torchruns
from pipetrain.runner.launch.signals import Interruption
from pipetrain.runner.terminal.error_line import message
from pipetrain.runner.tracking.progress import status
from pipetrain.runner.tracking.run_directory import RunDirectory, check_member
from pipetrain.runner.tracking.run_lock import is_removed, locked
from pipetrain.runner.tracking.trackers.identity import MLFLOW_PARENT, stored_ids

if TYPE_CHECKING:
    from pipetrain.runner.config.settings import Settings
    from pipetrain.runner.tracking.progress import ProgressBar
    from pipetrain.runner.training.job import Job

_NONE: Mapping[str, Any] = {}
_REMOVED = "{}: the run directory was removed or renamed during the run"


def prepared(
    composition: Composition,
    run: RunDirectory,
    lock: contextlib.ExitStack,
    objects: Mapping[str, Any] = _NONE,
    *,
    sweep: Path | None = None,
    shows: bool = True,
) -> "Job":
    """The job of a run; nothing in its directory is overwritten yet.

    `lock` gets the lock of the directory, and so ends the run; `objects`, by section, take the place of targets; if it
    `shows` anything, the terminal says that this takes a while.

    Raises:
        ConfigError: the first setting that cannot work.
        OmegaConfBaseException: a setting is of another type, or not given.
        DataError: the data set's own code fails.
    """
    check_hydra(composition.hydra)
    settings = with_objects(settings_of(composition.config, composition.choices), objects)
    leads = outer_launcher.leads()  # of an outer launcher's processes, rank 0 alone writes
    if leads:
        if sweep is not None:
            check_member(run.path.absolute(), sweep.absolute())
        lock.enter_context(locked(run.path))
        run.check_own()
        run.check_replaceable()
        settings = _with_restart(settings, run)
    else:  # rank 0 finds the checkpoint to resume
        settings = replace(settings, resume=None)
    if not settings.executor.simulated and not outer_launcher.is_present():
        fork_server.start(settings.model.target.path, settings.dataset.target.path)
    with status("preparing the run", hidden=not (leads and shows)):
        # from here on torch is needed, which takes seconds to import
        with gc_paused("torch"):
            from pipetrain.runner.launch.open_files import check_open_files
            from pipetrain.runner.training.preflight import prepare

        job = replace(prepare(settings, run), sweep=sweep)
        check_open_files(job)
        return job


def _with_restart(settings: "Settings", run: RunDirectory) -> "Settings":
    """The settings; a run that torchrun has restarted resumes from what it has saved, not from any earlier run."""
    if not is_torchruns():
        return settings
    from pipetrain.runner.launch.rendezvous import last_begun
    from pipetrain.runner.training.checkpoint import store

    begun = last_begun()
    if begun is None:
        return settings
    before, resumed = begun
    if before == run.path.absolute() and store.checkpoints(before):
        return replace(settings, resume="auto")
    source = store.newest_whole(before)[0] or resumed  # a folder named by the time is new at each start
    return settings if source is None else replace(settings, resume=str(source))


def carried_out(
    job: "Job", composition: Composition, interruption: Interruption, way_on: Callable[[], str], *, quiet: bool = False
) -> dict[str, Any]:
    """Runs the stages from this process, which starts the workers or simulates them, unless they fail; the summary.

    `way_on` returns how a user continues the run after an error of its disk.

    Raises:
        ConfigError, DataError, RunError: the run failed, and the summary says so.
        Exception: so it did, by an error of the user's own code.
    """
    from pipetrain.runner.api.reporting import reporting
    from pipetrain.runner.tracking import summary

    earlier = summary.read_undamaged(job.run)
    try:
        with reporting(job, composition.hydra, quiet=quiet) as report:
            if job.settings.executor.simulated:
                from pipetrain.runner.launch.worker import run_simulated

                report.summary = run_simulated(job, report.bar.update, interruption)
            else:
                report.summary = _launch(job, report.bar, interruption)
            interruption.settle()
            if is_removed(job.run.path):
                raise RunError(_REMOVED.format(job.run))
    except (KeyboardInterrupt, *USERS_ERRORS) as error:
        interruption.settle()
        return _left_by(job, error, way_on, earlier, quiet=quiet)
    return report.summary


def _launch(job: "Job", bar: "ProgressBar", interruption: Interruption) -> dict[str, Any]:
    from pipetrain.runner.launch.launcher import launch, with_restarts
    from pipetrain.runner.tracking.metrics_tail import MetricsTail

    def attempt(job: "Job") -> dict[str, Any]:
        with contextlib.closing(MetricsTail(job.run, bar, bar.begun_at)):
            return launch(job, interruption)

    return with_restarts(job, attempt, interruption, bar.begin_again)


def _left_by(
    job: "Job", error: BaseException, way_on: Callable[[], str], earlier: dict[str, Any] | None, *, quiet: bool
) -> dict[str, Any]:
    """The summary of a run that an exception ended; raises the exception, or a clearer one, if the run failed.

    `earlier` is the summary that its directory had before: it is of another run.
    """
    from pipetrain.runner.terminal.run_tables import summary_lines
    from pipetrain.runner.training.outcome import ensure_summary

    interrupted = isinstance(error, KeyboardInterrupt)
    if not interrupted and not isinstance(error, ConfigError):
        error = _disk_error(job, error, way_on)
    left = ensure_summary(job, "interrupted" if interrupted else "failed", message(error))
    if left == earlier:
        raise error
    ids = stored_ids(job.run)
    for name in job.settings.log.to:
        _end_in_tracker(name, ids.get(name, ""), left["status"])
    if left["status"] == "failed" or (not interrupted and is_removed(job.run.path)):
        raise RunError(left["reason"]) if interrupted else error
    if left["status"] == "completed" and not quiet:
        print(*summary_lines(left), sep="\n", flush=True)
    return left


def end_sweep_in_mlflow(folder: Path, status: str) -> None:
    """Ends the run of MLflow that is the parent of a sweep's runs, if there is one."""
    if (parent := folder / MLFLOW_PARENT).is_file():
        _end_in_tracker("mlflow", parent.read_text(encoding="utf-8"), status)


def _end_in_tracker(name: str, run_id: str, status: str) -> None:
    """Ends a run in a tracker that its own process may not have ended; a failure to do so is only a warning."""
    if run_id:
        from pipetrain.runner.training.components.callbacks import tracker

        try:
            tracker(name).located().end_run(run_id, status)
        except Exception as error:
            print(f"pipetrain: warning: the run {run_id} in {name}: {described(error)}", file=sys.stderr)


def _disk_error(job: "Job", error: BaseException, way_on: Callable[[], str]) -> BaseException:
    """The error, or one that says what to do about the run directory or a full disk."""
    if is_removed(job.run.path):
        return RunError(_REMOVED.format(job.run))
    if not is_disk_full(error):
        return error
    from pipetrain.runner.training.checkpoint.writer import remove_leftovers

    remove_leftovers(job.run.path)  # unfinished files take the space that the summary needs
    full, safe = f"{message(error)}; a disk is full", newest_step(job)
    if safe is None:
        return RunError(f"{full}; no checkpoint was written yet; free disk space and start again")
    return RunError(f"{full}; checkpoint step {safe} is intact; free disk space, then resume with: {way_on()}")


def newest_step(job: "Job") -> int | None:
    """The step of the newest checkpoint, which may be the one that the run resumed; None without one."""
    from pipetrain.runner.training.checkpoint import store

    own = store.checkpoints(job.run.path)
    newest = own[-1] if own else job.resume
    return store.step_of(newest) if newest else None


def way_on_from(job: "Job") -> Path:
    """What `resume` must name to go on: the run directory, or before its first checkpoint the one that it resumed."""
    from pipetrain.runner.training.checkpoint import store

    return job.resume if job.resume and not store.checkpoints(job.run.path) else job.run.path
