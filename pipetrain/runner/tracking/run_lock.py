"""The lock of a run directory, so that one run at a time writes to it."""

import contextlib
import errno
import fcntl
import json
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Self

from typing_extensions import override

from pipetrain.engine.errors import ConfigError, one_line
from pipetrain.engine.files import strict_json
from pipetrain.engine.files.regular_file import descriptor_of

NAME = ".lock"
SIGN_OF_LIFE_SECONDS = 30.0
DEAD_SECONDS = 300.0
_ATTEMPTS, _PAUSE_SECONDS = 20, 0.05
_CONTENDED = (errno.EAGAIN, errno.EACCES)
_NO_FILE = (errno.ELOOP, errno.ENXIO)
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@dataclass(frozen=True)
class Owner:
    """The process that a lock belongs to; `since` is when it took the lock, by its own clock."""

    pid: int = field(default_factory=os.getpid)
    host: str = field(default_factory=socket.gethostname)
    since: str = field(default_factory=lambda: time.strftime("%Y-%m-%d %H:%M:%S"))

    @override
    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since}" if self.host else "process unknown"

    @property
    def elsewhere(self) -> bool:
        """True if it is on another machine."""
        return bool(self.host) and self.host != socket.gethostname()


_UNKNOWN = Owner(0, "", "")


def is_removed(run: Path) -> bool:
    """True if the directory of a run was removed, even if another one has its name now."""
    return not (run / NAME).exists()  # it was made before anything else


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Makes the folder if necessary, and locks it against other processes that use this function.

    The operating system frees the lock of a process that is gone. It may not know about other machines: a lock that
    another one left counts until it has shown no sign of life for `DEAD_SECONDS`.

    Raises:
        ConfigError: another process has the lock, or the folder cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = _take(folder / NAME)
    except OSError as error:
        if error.errno in _NO_FILE:
            raise ConfigError(f"{folder / NAME}: is not a regular file; remove it") from error
        raise ConfigError(f"{folder}: a run cannot write here ({error.strerror})") from error
    ended = threading.Event()
    alive = threading.Thread(target=file.show_life, args=(ended,), name="lock", daemon=True)
    alive.start()
    _kept.add(file)
    try:
        yield
    finally:
        ended.set()
        alive.join()
        _kept.discard(file)
        file.remove()
        file.close()


def owner_of(folder: Path) -> Owner | None:
    """Owner of the run in a folder; None if there is no run."""
    try:
        file = _LockFile.opened(folder / NAME, os.O_RDONLY)
    except OSError:
        return None
    with contextlib.closing(file):
        return file.other_owner(fcntl.LOCK_SH)


def _take(path: Path) -> "_LockFile":
    """Locks the file, and returns it.

    Raises:
        ConfigError: another process has the lock.
    """
    owner = _UNKNOWN
    for _ in range(_ATTEMPTS):  # a process that merely looks at a lock has it for a moment
        file = _LockFile.opened(path, os.O_RDWR | os.O_CREAT)
        other = file.other_owner(fcntl.LOCK_EX)
        if other is None and file.is_in_place():
            os.ftruncate(file.descriptor, 0)
            os.pwrite(file.descriptor, json.dumps(asdict(Owner())).encode(), 0)
            return file
        file.close()
        owner = other or owner
        if owner.elsewhere:
            break
        time.sleep(_PAUSE_SECONDS)
    text = f"{path.parent}: another run is writing here ({owner}); wait for its end, or choose another directory"
    if owner.elsewhere:
        text += f"; if it is dead, remove {path}, or wait {DEAD_SECONDS / 60:.0f} minutes"
    raise ConfigError(text)


@dataclass(frozen=True)
class _LockFile:
    """An open lock file; the operating system's lock on it ends when it is closed."""

    path: Path
    descriptor: int

    @classmethod
    def opened(cls, path: Path, flags: int) -> Self:
        """Opens the file.

        Raises:
            OSError: it cannot be opened, or is a link or a pipe, which may come with an untrusted directory.
        """
        return cls(path, descriptor_of(path, flags | os.O_NOFOLLOW))

    def close(self) -> None:
        os.close(self.descriptor)

    def other_owner(self, kind: int) -> Owner | None:
        """The other owner of the lock; None if this process now has it."""
        try:
            owner = Owner(**strict_json.loads(os.pread(self.descriptor, 1000, 0)))
        except (ValueError, TypeError):
            owner = None
        try:
            fcntl.flock(self.descriptor, kind | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _CONTENDED:
                return owner or _UNKNOWN
            if error.errno not in _UNSUPPORTED:
                raise
            _say_unlocked(str(self.path.parent))
        else:
            if owner is not None and not owner.elsewhere:
                return None
        # another machine, or a file system without locks: the content of the file decides
        return None if owner is None or self._is_silent() else owner

    def _is_silent(self) -> bool:
        # a file's times are those of the machine that it lies on, so its age is measured by a new file there
        try:
            with tempfile.TemporaryFile(dir=self.path.parent) as new:
                age = os.fstat(new.fileno()).st_mtime - os.fstat(self.descriptor).st_mtime
        except OSError:
            return False
        return age > DEAD_SECONDS

    def is_in_place(self) -> bool:
        """True if the path still leads to the open file, which owners remove at their end."""
        try:
            return os.path.samestat(self.path.stat(), os.fstat(self.descriptor))
        except FileNotFoundError:
            return False

    def remove(self) -> None:
        """Removes the file, unless it has been replaced by another process's."""
        if self.is_in_place():
            self.path.unlink()

    def show_life(self, ended: threading.Event) -> None:
        """Renews the file's time until the event is set."""
        while not ended.wait(SIGN_OF_LIFE_SECONDS):
            with contextlib.suppress(OSError):  # a disk that fails ends the run where it is needed, not here
                os.utime(self.descriptor)


@cache
def _say_unlocked(folder: str) -> None:
    line = f"{folder}: this file system has no locks; do not start two runs here at the same moment"
    print(f"pipetrain: warning: {one_line(line)}", file=sys.stderr, flush=True)


_kept: set[_LockFile] = set()


def free_all() -> None:
    """Frees the locks of a process that is about to exit: other machines would take them for a live process's locks."""
    for file in _kept.copy():
        with contextlib.suppress(OSError):
            file.remove()


def _close_in_child() -> None:
    while _kept:  # none is left to a child of this one, where the number may be another file's
        _kept.pop().close()


# a worker of the data loader, forked from this process, would keep the lock for as long as it lives
os.register_at_fork(after_in_child=_close_in_child)
