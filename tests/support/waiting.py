"""Waits for what another thread or process does."""

import time
from collections.abc import Callable


def eventually(holds: Callable[[], bool], seconds: float = 20.0) -> None:
    """Waits until something holds, which must be within so many seconds."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "never"
        time.sleep(0.01)
