"""A process that ends when its parent does."""

import contextlib
import ctypes
import signal

_PR_SET_PDEATHSIG = 1  # of Linux's prctl(2)


def die_with_parent(number: signal.Signals) -> None:
    """Has the system send this process a signal when its parent dies; does nothing where the system cannot."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
