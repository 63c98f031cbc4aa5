"""The errors that a user can cause or must see, in one line, and the exit codes."""

from enum import IntEnum
from typing import TypeGuard


class ExitCode(IntEnum):
    """Exit codes of commands."""

    COMPLETED = 0
    FAILED = 1
    WRONG_USAGE = 2
    """Wrong words on the command line, or a configuration that cannot run."""
    DIVERGED = 3
    PREEMPTED = 75
    """Interrupted by SIGTERM or SIGUSR1, as by batch systems; the same command resumes (EX_TEMPFAIL of sysexits.h)."""
    INTERRUPTED = 130
    """Interrupted by Ctrl-C."""


class ConfigError(Exception):
    """A configuration that cannot run. Names the setting, its value, and what would work; exit code 2."""


class DataError(Exception):
    """An error in a data set's own code, with its sample, message and place. Exit code 2 if no run has begun."""


class DivergedError(Exception):
    """A training loss or a weight was not finite at `step`, counted from 1 as in metrics.jsonl; exit code 3."""

    def __init__(self, step: int, what: str) -> None:
        super().__init__(f"diverged: {what}")
        self.step = step


class InterruptedRunError(KeyboardInterrupt):
    """A run was interrupted, and the user has been shown what is saved and how to resume."""


class PreemptedError(KeyboardInterrupt):
    """A run was ended by SIGTERM or SIGUSR1; exit code 75."""


class RunError(Exception):
    """A run that failed; the message says all that there is to say. Exit code 1."""


class InvariantError(RuntimeError):
    """Execution differs from what method and schedule promise: a bug of pipetrain, never an error of the user."""


class LostStageError(Exception):
    """The connection to another stage broke; None if a library does not say to which."""

    def __init__(self, stage: int | None) -> None:
        super().__init__(f"lost the connection to {'another stage' if stage is None else f'stage {stage}'}")
        self.stage = stage


def is_whole(value: object) -> TypeGuard[int]:
    """True if the value is a whole number; `true` and `false` are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def check_whole(setting: str, value: object, least: int, otherwise: str = "") -> None:
    """Checks a setting that counts something, given its name on the command line.

    `otherwise` says what works as well, such as "or null for all samples".

    Raises:
        ConfigError: the value is no whole number, or below `least`.
    """
    if not is_whole(value) or value < least:
        works = f"must be a whole number of at least {least}" + (f", {otherwise}" if otherwise else "")
        raise ConfigError(f"{setting}={as_configured(value)}: {works}")


def check_flag(setting: str, value: object) -> None:
    """Checks a setting that is true or false.

    Raises:
        ConfigError: it is something else.
    """
    if not isinstance(value, bool):
        raise ConfigError(f"{setting}={value}: must be true or false")


def one_line(message: str | BaseException) -> str:
    """A message, or an error's message, without its line breaks, and with control characters escaped.

    It may quote the name of a file that is untrusted, and a terminal obeys such characters.
    """
    text = message if isinstance(message, str) else text_of(message)
    return "".join(map(_shown, " ".join(text.split())))


def text_of(error: BaseException) -> str:
    """The error's message, whatever its own `__str__` raises."""
    try:
        return str(error)
    except Exception:
        return "(its message cannot be shown)"


def _shown(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()


def as_configured(value: object) -> str:
    """The value as the command line takes it: true, false and null."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
