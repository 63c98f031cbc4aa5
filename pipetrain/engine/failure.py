"""Descriptions of an exception, in one line and in full: its type, message and place in the user's own code."""

import sysconfig
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pipetrain.engine.errors import ConfigError, DataError, DivergedError, InvariantError, RunError, one_line, text_of

USERS_ERRORS = (Exception, SystemExit, GeneratorExit)
"""What a user's own code may raise to fail; a KeyboardInterrupt ends the run as interrupted."""
_SAYS_ALL = (ConfigError, DataError, DivergedError, InvariantError, RunError)
"""Errors in our own words, which need neither their type nor a place in the code."""
_PACKAGE = Path(__file__).resolve().parents[1]
_STANDARD_LIBRARY = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")}
_LOCKS = ("multiprocessing", "synchronize.py")
"""End of the path of the module that creates the locks shared by processes; its errors carry no file name."""
_FULL = ("No space left on device", "Disk quota exceeded")
_LONGEST = 1000
"""Characters of a message of the user's code that are shown; the traceback has all."""
_INSTALLED = {"site-packages", "dist-packages"}


@dataclass(frozen=True)
class Failure:
    """Description of an exception; can be sent to another process.

    Attributes:
        line: its type, its message and the user's file and line, without line breaks.
        traceback: in full.
    """

    line: str
    traceback: str

    @classmethod
    def of(cls, error: BaseException) -> Self:
        """Description of `error`, including the original error if it comes from another process."""
        text = "".join(traceback.format_exception(error))
        remote = error if isinstance(error, RemoteError) else error.__cause__
        if isinstance(remote, RemoteError):
            text = f"{remote.failure.traceback}\nThis was in another process; in this one:\n\n{text}"
        return cls(described(error), text)


class RemoteError(Exception):
    """An exception of another process, raised again in this one."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.line)
        self.failure = failure


def described(error: BaseException) -> str:
    """The error in one line, such as `KeyError: 'label' (mydata.py:12)`; the place only where it is the user's."""
    if isinstance(error, RemoteError):
        return error.failure.line
    if in_own_words(error):
        return one_line(error) or type(error).__name__
    if place := place_of(error):
        return one_line(f"{_named(error)} ({place})")
    if isinstance(error, OSError) and (file := _file(error)) is not None:
        return one_line(f"{file}: {error.strerror}")
    return one_line(_named(error))


def in_own_words(error: BaseException) -> bool:
    """True for an error that pipetrain describes itself."""
    return isinstance(error, _SAYS_ALL)


def is_disk_full(error: BaseException) -> bool:
    """True if the error, or one that caused it, says that there is no space on a disk."""
    return any(words in Failure.of(error).traceback for words in _FULL)


def lacks_gradients(error: BaseException) -> str:
    """The cure, after a semicolon, of an error of a forward that needs gradients where they are off; else empty."""
    if not any(words in str(error) for words in ("does not require grad", "doesn't require gradient")):
        return ""
    return "; evaluations compute without gradients, and `with torch.enable_grad():` around what needs them works"


def _named(error: BaseException) -> str:
    kind, text = type(error).__name__, text_of(error)
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]}... ({len(text):,} characters)"
    if isinstance(error, SystemExit):
        return f"sys.exit({text}) was called"
    return f"{kind}: {text}" if text else kind


def _file(error: OSError) -> str | None:
    """The file at fault; None if the error does not say."""
    if error.filename is not None or error.__traceback__ is None:
        return None if error.filename is None else str(error.filename)
    raised_in = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
    return "/dev/shm" if raised_in.parts[-2:] == _LOCKS else None


def place_of(error: BaseException) -> str | None:
    """File and line of the innermost frame in the user's own code, or None."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if _is_users(frame.filename)]
    return f"{relative_to_cwd(Path(own[-1].filename))}:{own[-1].lineno}" if own else None


def _is_users(file: str) -> bool:
    if file.startswith("<"):
        return False
    path = Path(file).resolve()
    above = set(path.parents)
    return _PACKAGE not in above and not (above & _STANDARD_LIBRARY) and not (_INSTALLED & set(path.parts))


def relative_to_cwd(path: Path) -> str:
    """A path as one would type it in the working directory."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
