"""Whether a worker that an outer launcher started still reaches the store by which all see each other."""

import sys
import threading
from typing import TYPE_CHECKING

from pipetrain.launch import lifeline
from pipetrain.launch.awake_clock import AwakeClock
from pipetrain.launch.failure_note import FailureKind, FailureNote
from pipetrain.launch.heartbeat import BEAT_SECONDS
from pipetrain.tracking.run_directory import RunDirectory

if TYPE_CHECKING:
    from pipetrain.launch.watchdog import Watched


class Reach:
    """Ends a worker whose store has not answered for `launch.hang_timeout`.

    A request over a link that was cut may wait for a quarter of an hour, and the thread that made it with it. So
    another one looks at the time.

    Args:
        watched: the worker.
        run: the run directory.
    """

    def __init__(self, watched: "Watched", run: RunDirectory) -> None:
        self._watched = watched
        self._run = run
        self._seconds = self._answered_at = 0.0
        self._closed = threading.Event()

    def begin(self) -> None:
        """Begins to count."""
        threading.Thread(target=self._watch, name="reach", daemon=True).start()

    def answered(self) -> None:
        """The store has answered."""
        self._answered_at = self._seconds

    def close(self) -> None:
        """Nothing is asked of the store any more."""
        self._closed.set()

    def _watch(self) -> None:
        clock = AwakeClock()
        while not self._closed.wait(BEAT_SECONDS):
            self._seconds = clock.look()
            if self._seconds - self._answered_at > self._watched.hang_timeout:
                self._leave()
                return

    def _leave(self) -> None:
        reason = (
            f"process {self._watched.process} has not reached the machine of the first process for "
            f"{self._watched.hang_timeout:g} s (launch.hang_timeout)"
        )
        FailureNote(FailureKind.LOST, reason).leave(self._run, self._watched.process)
        print(f"pipetrain: error: {reason}", file=sys.stderr, flush=True)
        lifeline.end(lifeline.EXIT_LOST)
