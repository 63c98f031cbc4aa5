"""Messages about a run that ended early: the reason, the traceback, the newest checkpoint, how to continue."""

import contextlib
import logging
import re
import shlex
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from pipetrain.engine import outer_launcher
from pipetrain.engine.errors import ExitCode, InterruptedRunError, RunError, one_line
from pipetrain.engine.failure import Failure, relative_to_cwd
from pipetrain.runner.api.one_run import newest_step, way_on_from
from pipetrain.runner.config.composition import quoted
from pipetrain.runner.terminal.error_line import report_error
from pipetrain.runner.tracking.run_directory import RunDirectory

if TYPE_CHECKING:
    from pipetrain.runner.training.job import Job


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
        print(one_line(how_to_continue(job, hydra)), flush=True)
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
    if outer_launcher.leads():
        print("interrupted before the run began; nothing was written", flush=True)


def failed_early(error: BaseException, run: RunDirectory, *, debug: bool) -> ExitCode:
    """Reports an unexpected exception, in one line that names the file of its traceback."""
    with contextlib.suppress(OSError):  # the log's directory may be gone, or its disk full
        log.error("the run failed\n%s", Failure.of(error).traceback)
    if isinstance(error, RunError) or not run.log.is_file():
        return report_error(error, ExitCode.FAILED, debug=debug)
    return report_error(error, ExitCode.FAILED, debug=debug, more=f"; traceback in {run.log}")


def how_to_continue(job: "Job", hydra: DictConfig) -> str:
    """Message about the saved step of an interrupted run, with the command that continues it."""
    step = newest_step(job)
    if step is None:
        return f"interrupted before there was a checkpoint; partial results are in {job.run}"
    return f"interrupted; step {step} is saved; go on from there with: {command_to_continue(job, hydra)}"


_PLAIN = re.compile(r"[\w/.:@%~+-]+")
"""Values that Hydra accepts without quotes."""


def command_to_continue(job: "Job", hydra: DictConfig) -> str:
    """Command that continues a run: its overrides, its directory, and what it resumes."""
    overrides = [word for word in hydra.overrides.task if not word.startswith(("resume=", "+resume="))]
    sources = hydra.runtime.get("config_sources", [])
    flags = [f"--config-dir={each.path}" for each in sources if each.provider == "command-line"]
    source = way_on_from(job)
    resume = "auto" if source == job.run.path else _value(source)
    words = [*flags, *overrides, f"hydra.run.dir={_value(job.run.path)}", f"resume={resume}"]
    program = "torchrun ... -m pipetrain" if outer_launcher.is_present() else "pipetrain"
    return f"{program} run {shlex.join(words)}"


def _value(path: Path) -> str:
    """A path as the value of an override."""
    shown = relative_to_cwd(path)
    return shown if _PLAIN.fullmatch(shown) else quoted(shown)
