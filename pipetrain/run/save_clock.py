"""The clock that asks for checkpoints."""

import time
from collections.abc import Callable


class SaveClock:
    """Asks for a checkpoint whenever so much time has passed since the last one, and a minibatch has begun.

    Args:
        minutes: that pass; None to never ask.
        ask: called once until the clock is started anew.
    """

    def __init__(self, minutes: float | None, ask: Callable[[], None]) -> None:
        self._seconds = None if minutes is None else 60 * minutes
        self._ask = ask
        self.start()

    def start(self) -> None:
        """Counts from now on."""
        self._began = time.monotonic()
        self._minibatches = 0
        self._asked = False

    def look(self) -> None:
        """Asks, if it is time; to be called before each minibatch."""
        if self._seconds is None or self._asked:
            return
        self._minibatches += 1
        if self._minibatches > 1 and time.monotonic() - self._began >= self._seconds:
            self._asked = True
            self._ask()
