"""A clock that stands still while its process does."""

import time


class AwakeClock:
    """Seconds in which the process could run.

    Ctrl-Z, a batch system or a closed laptop stops all processes of a run at once, and none of them hangs. A process
    cannot be told that it was stopped, but sees that it has not looked for long.

    Args:
        most: what a pause between two looks counts at most.
    """

    def __init__(self, most: float = 2.0) -> None:
        self._most = most
        self._seen = time.monotonic()
        self._seconds = 0.0

    def look(self) -> float:
        """The seconds so far; to be called more often than every `most` seconds."""
        now = time.monotonic()
        self._seconds += min(now - self._seen, self._most)
        self._seen = now
        return self._seconds
