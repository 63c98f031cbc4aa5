"""Signals that end a run, the end of a process's parent, and the cores that it may use."""

import contextlib
import ctypes
import os
import signal
from pathlib import Path

_NAMES = ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP", "SIGQUIT")
ENDING = tuple(getattr(signal, name) for name in _NAMES if hasattr(signal, name))
"""Ctrl-C, a batch system, its warning, a terminal that is closed, Ctrl-\\."""
_PR_SET_PDEATHSIG = 1  # of Linux's prctl(2)
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def die_with_parent(number: signal.Signals) -> None:
    """Has the system send this process a signal when its parent dies; does nothing where the system cannot."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def machine_id() -> str:
    """The boot of this machine, the same in all its containers; where the system has none, its name."""
    return _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else os.uname().nodename


def usable_cores() -> int:
    """Number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
