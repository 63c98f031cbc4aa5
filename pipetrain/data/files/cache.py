"""Files that are computed once, and read by later runs and by the other processes of this one."""

import errno
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray


def cached_file(name: str) -> Path:
    """The path of a file in `pipetrain/` of $XDG_CACHE_HOME, by default ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pipetrain" / name


def private_folder(name: str) -> Path:
    """A folder of the cache with mode 0700, created if it is missing.

    Raises:
        OSError: it cannot be made, or is another user's.
    """
    path = cached_file(name)
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, "it is a link, or another user's", str(path))
    path.chmod(0o700)
    return path


def write_cached(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Lets `write` fill the file, which is renamed when complete: processes may do so concurrently.

    If there is no room for it, there is no file, and its content is computed again each time.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
            partial = Path(file.name)
            try:
                write(file)
            except BaseException:
                partial.unlink()
                raise
        partial.replace(path)
    except OSError:
        return


def cached_array(name: str, compute: Callable[[], NDArray[Any]], *, mapped: bool = False) -> NDArray[Any]:
    """The array in a file of the cache, computed and written if it cannot be read.

    With `mapped` the file is mapped into memory, which processes then share.
    """
    path = cached_file(name)
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
    except (OSError, ValueError, EOFError):  # missing or damaged
        array = compute()
        write_cached(path, lambda file: np.save(file, array, allow_pickle=False))
    return array
