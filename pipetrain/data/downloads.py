"""Fetching the files of a data set once, though every stage of a run reads them."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipetrain.errors import ConfigError


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
