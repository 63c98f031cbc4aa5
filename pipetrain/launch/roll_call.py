"""Which of a run's workers were heard of, and when."""

import os
import socket

from pipetrain.launch.awake_clock import AwakeClock
from pipetrain.launch.heartbeat import Heartbeat


class RollCall:
    """The newest heartbeat of every worker, and how long ago it came."""

    def __init__(self) -> None:
        self._clock = AwakeClock()
        self._heard: dict[int, tuple[Heartbeat, float]] = {}
        self._changed: dict[int, float] = {}
        self.seconds = 0.0
        """Since the beginning, without the time in which this process stood still."""

    def look(self) -> None:
        """Reads the clock; to be called about as often as workers give a heartbeat."""
        self.seconds = self._clock.look()

    def hear(self, beat: Heartbeat) -> None:
        """Takes note of a heartbeat, if it is not the one that was heard before."""
        last = self.last(beat.process)
        if last is not None and last.number == beat.number:
            return
        self._heard[beat.process] = beat, self.seconds
        if last is None or last.changes != beat.changes:
            self._changed[beat.process] = self.seconds

    def last(self, process: int) -> Heartbeat | None:
        """The newest heartbeat of a worker; None before the first."""
        return self._heard[process][0] if process in self._heard else None

    def silence(self, process: int) -> float:
        """Seconds since the newest heartbeat."""
        return self.seconds - self._heard[process][1]

    def idleness(self, process: int) -> float:
        """Seconds since a heartbeat told of something new."""
        return self.seconds - self._changed[process]


def is_gone(beat: Heartbeat) -> bool:
    """Whether the worker that sent it was of this machine, and has ended."""
    if beat.host != socket.gethostname():
        return False
    try:
        os.kill(beat.pid, 0)
    except (ProcessLookupError, PermissionError):  # there is none, or another user's by now
        return True
    return False
