"""What the allocator of a stage's process does with memory that is freed."""

import contextlib
import ctypes
import os

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h


def keep_freed_memory() -> None:
    """Lets glibc keep what this process frees, unless the user has set its thresholds.

    A step frees its activations and takes as many again. By default glibc gives the larger ones back to the system each
    time, and the page faults of taking them again cost about 2 % of a step of ResNet-56. It leaves arrays above 32 MB,
    the most it can keep, as they are. Without glibc nothing happens.
    """
    if any(name.startswith("MALLOC_") for name in os.environ):
        return
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(_M_MMAP_THRESHOLD, 32 * 2**20)
