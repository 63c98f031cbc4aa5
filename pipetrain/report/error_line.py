"""An error as a user sees it: one line on stderr."""

import sys
import traceback

from hydra.errors import HydraException
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from pipetrain.errors import ExitCode, one_line


def report_error(error: BaseException, code: ExitCode, *, debug: bool = False) -> ExitCode:
    """Prints the error in one line on stderr, below its traceback with `debug`; returns the exit code."""
    if debug:
        traceback.print_exception(error)
    text = one_line(_message(error)) or type(error).__name__
    print(f"pipetrain: error: {text}", file=sys.stderr, flush=True)
    return code


def _message(error: BaseException) -> str:
    """Hydra's and OmegaConf's messages without their search paths and types."""
    if isinstance(error, MissingMandatoryValue):
        return f"{error.full_key} is not set; give it a value: {error.full_key}=..."
    if not isinstance(error, HydraException | OmegaConfBaseException):
        return str(error)
    text = str(error).split("Config search path")[0].split("\n    full_key")[0]
    cause = str(error.__cause__).splitlines()[0] if error.__cause__ else ""
    return f"{text.rstrip()}: {cause}" if cause and cause not in text else text
