"""Files that are made or fetched once, and read by later runs and by the other processes of this one."""

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from pipetrain.errors import ConfigError


def cached_file(name: str) -> Path:
    """The path of a file in `pipetrain/` of $XDG_CACHE_HOME, by default ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pipetrain" / name


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
    """The array in a file of the cache, computed and written if there is none that can be read.

    Args:
        name: of the file.
        compute: the array.
        mapped: map the file into memory, so that processes share it, instead of reading it.
    """
    path = cached_file(name)
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
    except (OSError, ValueError, EOFError):  # there is none, or a damaged one
        array = compute()
        write_cached(path, lambda file: np.save(file, array, allow_pickle=False))
    return array


@contextmanager
def download_lock(base: Path, setting: str) -> Iterator[None]:
    """Held by the process that downloads into `base`, while the others wait and then find the files.

    Args:
        base: made if it is missing.
        setting: that names it, for the error.

    Raises:
        ConfigError: nothing can be written there.
    """
    try:
        base.mkdir(parents=True, exist_ok=True)
        lock = (base / ".pipetrain.lock").open("w")
    except OSError as error:
        raise ConfigError(f"{setting}: cannot write to {base}: {error.strerror}") from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
