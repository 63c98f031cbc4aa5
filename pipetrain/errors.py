"""The errors that a user can cause, or must be told of, in one line, and the exit codes."""

from enum import IntEnum

from hydra.errors import CompactHydraException


class ExitCode(IntEnum):
    """How a command ended."""

    COMPLETED = 0
    FAILED = 1
    WRONG_USAGE = 2
    """Wrong words on the command line, or a configuration that cannot run."""
    DIVERGED = 3
    INTERRUPTED = 130
    """By Ctrl-C or SIGTERM."""


class ConfigError(CompactHydraException):
    """A configuration that cannot run. Names the setting, its value, and what would work; exit code 2."""


class DivergedError(Exception):
    """The training loss of `step`, counted from 1 as in metrics.jsonl, was not finite; exit code 3."""

    def __init__(self, step: int, loss: float) -> None:
        super().__init__(f"diverged: the loss of step {step} is {loss}")
        self.step = step
        self.loss = loss
