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

from typing_extensions import override

from pipetrain.data.files import strict_json
from pipetrain.data.files.regular_file import descriptor_of
from pipetrain.engine.errors import ConfigError, one_line

NAME = ".lock"
SIGN_OF_LIFE_SECONDS = 30.0
DEAD_SECONDS = 300.0
_ATTEMPTS, _PAUSE_SECONDS = 20, 0.05
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)

_kept: dict[int, Path] = {}  # the locks of this process, by descriptor


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
    path = folder / NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = _take(path)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise ConfigError(f"{path}: is not a regular file; remove it") from error
        raise ConfigError(f"{folder}: a run cannot write here ({error.strerror})") from error
    ended = threading.Event()
    alive = threading.Thread(target=_show_life, args=(descriptor, ended), name="lock", daemon=True)
    alive.start()
    _kept[descriptor] = path
    try:
        yield
    finally:
        ended.set()
        alive.join()
        del _kept[descriptor]
        _remove(path, descriptor)
        os.close(descriptor)


def owner_of(folder: Path) -> Owner | None:
    """Owner of the run in a folder; None if there is no run."""
    try:
        descriptor = descriptor_of(folder / NAME, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        return _other_owner(folder, descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def free_all() -> None:
    """Frees the locks of a process that is about to exit: other machines would take them for a live process's locks."""
    for descriptor, path in _kept.copy().items():
        with contextlib.suppress(OSError):
            _remove(path, descriptor)


def _take(path: Path) -> int:
    """The descriptor of the locked file; a link or a pipe, which may come with an untrusted folder, raises OSError."""
    owner = _UNKNOWN
    for _ in range(_ATTEMPTS):  # a process that merely looks at a lock has it for a moment
        descriptor = descriptor_of(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
        other = _other_owner(path.parent, descriptor, fcntl.LOCK_EX)
        if other is None and _is_in_place(path, descriptor):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(asdict(Owner())).encode(), 0)
            return descriptor
        os.close(descriptor)
        owner = other or owner
        if owner.elsewhere:
            break
        time.sleep(_PAUSE_SECONDS)
    text = f"{path.parent}: another run is writing here ({owner}); wait for its end, or choose another directory"
    if owner.elsewhere:
        text += f"; if it is dead, remove {path}, or wait {DEAD_SECONDS / 60:.0f} minutes"
    raise ConfigError(text)


def _other_owner(folder: Path, descriptor: int, kind: int) -> Owner | None:
    """The other owner of the lock; None if this process now has it, until the descriptor is closed."""
    try:
        owner = Owner(**strict_json.loads(os.pread(descriptor, 1000, 0)))
    except (ValueError, TypeError):
        owner = None
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return owner or _UNKNOWN
        if error.errno not in _UNSUPPORTED:
            raise
        _say_unlocked(folder)
    else:
        if owner is not None and not owner.elsewhere:
            return None
    # another machine, or a file system without locks: the content of the file decides
    return None if owner is None or _is_silent(folder, descriptor) else owner


def _is_silent(folder: Path, descriptor: int) -> bool:
    # a file's times are those of the machine that it lies on, so its age is measured by a new file there
    try:
        with tempfile.TemporaryFile(dir=folder) as new:
            return os.fstat(new.fileno()).st_mtime - os.fstat(descriptor).st_mtime > DEAD_SECONDS
    except OSError:
        return False


def _show_life(descriptor: int, ended: threading.Event) -> None:
    while not ended.wait(SIGN_OF_LIFE_SECONDS):
        with contextlib.suppress(OSError):  # a disk that fails ends the run where it is needed, not here
            os.utime(descriptor)


def _is_in_place(path: Path, descriptor: int) -> bool:
    """True if the path still leads to the open file, which owners remove at their end."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _remove(path: Path, descriptor: int) -> None:
    if _is_in_place(path, descriptor):  # not replaced by another process's
        path.unlink()


@cache
def _say_unlocked(folder: Path) -> None:
    line = f"{folder}: this file system has no locks; do not start two runs here at the same moment"
    print(f"pipetrain: warning: {one_line(line)}", file=sys.stderr, flush=True)


def _close_in_child() -> None:
    while _kept:  # none is left to a child of this one, where the number may be another file's
        os.close(_kept.popitem()[0])


# a worker of the data loader, forked from this process, would keep the lock for as long as it lives
os.register_at_fork(after_in_child=_close_in_child)
