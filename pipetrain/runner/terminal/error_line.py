"""An error as a user sees it: one line on stderr."""

import sys

from pipetrain.engine.errors import ExitCode, one_line
from pipetrain.engine.failure import Failure, described
from pipetrain.runner.config.hydra_errors import CONFIGURATION_ERRORS, explained


def report_error(error: BaseException, code: ExitCode, *, debug: bool = False, more: str = "") -> ExitCode:
    """Prints the error and `more` in one line on stderr, below its traceback with `debug`; returns the exit code."""
    if debug:
        print(Failure.of(error).traceback, file=sys.stderr)
    print(f"pipetrain: error: {message(error)}{more}", file=sys.stderr, flush=True)
    return code


def message(error: BaseException) -> str:
    """The error's message in one line, with its type and the line of the user's code if it alone is not enough."""
    if isinstance(error, CONFIGURATION_ERRORS):
        return one_line(explained(error))
    return described(error)
