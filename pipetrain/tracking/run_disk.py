"""What is wrong with the place that a run writes to: its directory is gone, or its disk is full."""

import shutil

from pipetrain.failure import Failure
from pipetrain.tracking import run_lock
from pipetrain.tracking.run_directory import RunDirectory

_NO_SPACE = ("No space left on device", "Disk quota exceeded", "File too large")
_LITTLE = 2**20
"""Free bytes of a disk that is as good as full."""


def is_removed(run: RunDirectory) -> bool:
    """Whether a directory in which a run began is gone, though another may have its name."""
    return not (run.path / run_lock.NAME).exists()  # it was made before anything else


def shortage(run: RunDirectory, error: BaseException) -> str | None:
    """What a run that ended with this error found no room for, such as `no space left on device`; None where it did."""
    text = Failure.of(error).traceback
    if "/dev/shm" in text:  # the readers of samples share memory there
        return None
    said = next((words.lower() for words in _NO_SPACE if words in text), None)
    return said or (_NO_SPACE[0].lower() if shutil.disk_usage(run.path).free < _LITTLE else None)
