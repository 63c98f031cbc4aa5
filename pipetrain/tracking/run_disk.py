"""Problems of the place that a run writes to: its directory is gone, or its disk is full."""

import re
import shutil
from pathlib import Path

from pipetrain.failure import Failure
from pipetrain.tracking import run_lock
from pipetrain.tracking.run_directory import RunDirectory

_NO_SPACE = "No space left on device"
_FULL = re.compile(
    rf"(?P<words>{_NO_SPACE}|Disk quota exceeded|File too large|Input/output error)"
    r"(?:: '(?P<file>.+?)'| \((?P<line>\S+:\d+)\))?"
)
"""Message of the system, followed by a file or by the line of the user's code, if the error names one."""
FAILING = "input/output error"
"""The beginning of what `shortage` says of a disk that fails."""
_SHARED_MEMORY = ("/dev/shm", "multiprocessing/synchronize.py")
_LITTLE = 2**20
"""Free bytes of a disk that is as good as full."""


def is_removed(run: RunDirectory) -> bool:
    """True if the directory in which the run began is gone, even if another has its name."""
    return not (run.path / run_lock.NAME).exists()  # it was made before anything else


def shortage(run: RunDirectory, error: BaseException) -> str | None:
    """Message such as `no space left on device` if the run's disk is full or fails; None otherwise.

    What is full may also be another disk: that of a file which the error names, or which the user's code wrote.
    """
    failure = Failure.of(error)
    if any(sign in failure.traceback for sign in _SHARED_MEMORY):  # which processes share
        return None
    found = [*_FULL.finditer(f"{failure.line}\n{failure.traceback}")]
    if not found:
        return _NO_SPACE.lower() if shutil.disk_usage(run.path).free < _LITTLE else None
    files = [each["file"] for each in found if each["file"]]
    if files:
        elsewhere = not Path(files[0]).absolute().is_relative_to(run.path.absolute())
    else:
        elsewhere = any(each["line"] for each in found)
    words = found[0]["words"].lower()
    return None if elsewhere else f"{words} in {Path(files[0]).name}" if files and words == FAILING else words
