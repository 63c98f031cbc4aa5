"""Messages about a run that ended early: the reason, the traceback, the newest checkpoint, how to continue."""

import contextlib
import logging
import os
import re
import shlex
import sys
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from pipetrain.errors import ConfigError, ExitCode, InterruptedRunError, RunError
from pipetrain.failure import Failure, described, relative_to_cwd
from pipetrain.report.error_line import message, report_error
from pipetrain.tracking import run_disk
from pipetrain.tracking.run_directory import RunDirectory
from pipetrain.tracking.trackers.identity import stored_ids

if TYPE_CHECKING:
    from pipetrain.training.job import Job


log = logging.getLogger(__name__)


def log_thread(died: threading.ExceptHookArgs) -> None:
    """Logs the exception of a thread, such as TensorBoard's on a full disk, and keeps it from the terminal."""
    with contextlib.suppress(OSError):
        log.error("a thread died", exc_info=died.exc_value)


def ended_as(job: "Job", summary: Mapping[str, Any], hydra: DictConfig) -> ExitCode:
    """The exit code of a summary; reports the cause of any end but completion.

    Raises:
        InterruptedRunError: the run was interrupted; a sweep ends with it.
    """
    if summary["status"] == "diverged":
        report_error(RunError(summary["reason"]), ExitCode.DIVERGED)
    if summary["status"] == "interrupted":
        print(how_to_continue(job, hydra), flush=True)
        raise InterruptedRunError(summary["reason"])
    return ExitCode[summary["status"].upper()]


def remove_empty_run(run: RunDirectory) -> None:
    """Removes what Hydra made for a refused run: the folder, and the log that would be opened in it."""
    run.remove_if_empty()
    for handler in logging.root.handlers[:]:
        if isinstance(handler, logging.FileHandler) and not Path(handler.baseFilename).parent.exists():
            logging.root.removeHandler(handler)


def never_began(runs: Iterable[RunDirectory]) -> None:
    """Removes what Hydra made for runs that a signal ended before they began, and reports that nothing is left."""
    for run in runs:
        remove_empty_run(run)
    if os.environ.get("RANK", "0") == "0":
        print("interrupted before the run began; nothing was written", flush=True)


def failed_early(error: BaseException, run: RunDirectory, *, debug: bool) -> ExitCode:
    """Reports an unexpected exception, in one line that names the file of its traceback."""
    with contextlib.suppress(OSError):  # the log's directory may be gone, or its disk full
        log.error("the run failed\n%s", Failure.of(error).traceback)
    if isinstance(error, RunError) or not run.log.is_file():
        return report_error(error, ExitCode.FAILED, debug=debug)
    return report_error(error, ExitCode.FAILED, debug=debug, more=f"; traceback in {run.log}")


def ended_early(job: "Job", error: BaseException, hydra: DictConfig) -> ExitCode:
    """Reports the exception that ended a run, unless an existing summary shows another end.

    Raises:
        InterruptedRunError: the run was interrupted.
    """
    from pipetrain.report.run_tables import summary_lines
    from pipetrain.training.outcome import ensure_summary

    interrupted = isinstance(error, KeyboardInterrupt)
    if not interrupted and not isinstance(error, ConfigError):
        error = _disk_error(job, error, hydra)
    left = ensure_summary(job, "interrupted" if interrupted else "failed", message(error))
    if "mlflow" in job.settings.log.to:
        end_in_mlflow(stored_ids(job.run).get("mlflow", ""), left["status"])
    if left["status"] == "completed":
        print(*summary_lines(left), sep="\n", flush=True)
    if left["status"] != "failed":
        return ended_as(job, left, hydra)
    if isinstance(error, ConfigError):
        return report_error(error, ExitCode.WRONG_USAGE, debug=job.settings.debug)
    return failed_early(error, job.run, debug=job.settings.debug)


def end_in_mlflow(run_id: str, status: str) -> None:
    """Ends a run in MLflow whose own process may not have been able to; a failure to do so is only a warning."""
    if run_id:
        from pipetrain.tracking.trackers.mlflow import end_run

        try:
            end_run(run_id, status)
        except Exception as error:
            print(f"pipetrain: warning: the run {run_id} of MLflow: {described(error)}", file=sys.stderr)


def _disk_error(job: "Job", error: BaseException, hydra: DictConfig) -> BaseException:
    """The error, or one that names what is wrong with the run directory or its disk."""
    if run_disk.is_removed(job.run):
        return RunError(f"{job.run}: the run directory was removed or renamed while the run was writing to it")
    shortage = run_disk.shortage(job.run, error)
    if shortage is None:
        return error
    from pipetrain.training.checkpoint.writer import remove_leftovers

    remove_leftovers(job.run.path)  # unfinished files take the space that the summary needs
    full, safe = f"{job.run}: {shortage}", _newest_step(job)
    if safe is None:
        return RunError(f"{full}; no checkpoint was written yet; free some space and start again")
    command = command_to_continue(job.run, hydra)
    return RunError(f"{full}; the checkpoint of step {safe} is safe; free some space and go on with: {command}")


def how_to_continue(job: "Job", hydra: DictConfig) -> str:
    """Message about the saved step of an interrupted run, with the command that continues it."""
    step = _newest_step(job)
    if step is None:
        return f"interrupted before there was a checkpoint; partial results are in {job.run}"
    return f"interrupted; step {step} is saved; go on from there with: {command_to_continue(job.run, hydra)}"


def _newest_step(job: "Job") -> int | None:
    """The step of the newest checkpoint, which may be the one that the run resumed; None without one."""
    from pipetrain.training.checkpoint import store

    own = store.checkpoints(job.run.path)
    newest = own[-1] if own else job.resume
    return store.step_of(newest) if newest else None


_PLAIN = re.compile(r"[\w/.:@%~+-]+")
"""Values that Hydra accepts without quotes."""


def command_to_continue(run: RunDirectory, hydra: DictConfig) -> str:
    """Command that continues a run: its overrides, its directory, and `resume=auto`."""
    overrides = [word for word in hydra.overrides.task if not word.startswith(("resume=", "+resume="))]
    sources = hydra.runtime.get("config_sources", [])
    flags = [f"--config-dir={each.path}" for each in sources if each.provider == "command-line"]
    folder = relative_to_cwd(run.path)
    if not _PLAIN.fullmatch(folder):
        folder = "'" + folder.replace("'", "\\'") + "'"
    words = [*flags, *overrides, f"hydra.run.dir={folder}", "resume=auto"]
    program = "torchrun ... -m pipetrain" if "RANK" in os.environ else "pipetrain"
    return f"{program} run {shlex.join(words)}"
