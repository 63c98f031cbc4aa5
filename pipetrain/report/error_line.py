"""An error as a user sees it: one line on stderr."""

import sys

from hydra.errors import HydraException
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from pipetrain.errors import ConfigError, DivergedError, ExitCode, RunError, one_line
from pipetrain.failure import Failure, described

_SAYS_ALL = (ConfigError, DivergedError, RunError)
"""Errors whose message needs neither their type nor a place in the code."""


def report_error(error: BaseException, code: ExitCode, *, debug: bool = False, more: str = "") -> ExitCode:
    """Prints the error and `more` in one line on stderr, below its traceback with `debug`; returns the exit code."""
    if debug:
        print(Failure.of(error).traceback, file=sys.stderr)
    print(f"pipetrain: error: {message(error)}{more}", file=sys.stderr, flush=True)
    return code


def message(error: BaseException) -> str:
    """What the error says, in one line; its type and the user's file and line where the message alone is too little."""
    if isinstance(error, (*_SAYS_ALL, HydraException, OmegaConfBaseException)):
        return one_line(_message(error)) or type(error).__name__
    return described(error)


def _message(error: BaseException) -> str:
    """Hydra's and OmegaConf's messages without their search paths and types."""
    if isinstance(error, MissingMandatoryValue):
        return f"{error.full_key} is not set; give it a value: {error.full_key}=..."
    if not isinstance(error, HydraException | OmegaConfBaseException):
        return str(error)
    text = str(error).split("Config search path")[0].split("\n    full_key")[0]
    cause = str(error.__cause__).splitlines()[0] if error.__cause__ else ""
    return f"{text.rstrip()}: {cause}" if cause and cause not in text else text
