"""The graceful stop of a run: on a signal it finishes the minibatches in flight and saves a checkpoint."""

import contextlib
import os
import select
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from pipetrain.runner.launch.signals import STOPPING, Interruption, handled_by

_CLOSED = 0


@contextlib.contextmanager
def drain_on_signal(stop: Callable[[], bool], seconds: float, interruption: Interruption) -> Iterator[None]:
    """Around training in this process, or in processes that it has started.

    Args:
        stop: called for the first signal; returns True if the run will save a checkpoint and end.
        seconds: for that; then the signal is sent again, which ends the run. 0: signals end it immediately.
        interruption: records every signal, so that one that a run survives still ends its sweep.
    """
    if threading.current_thread() is not threading.main_thread() or not seconds:
        yield  # only the main thread has handlers
        return

    def handle(number: int, _frame: FrameType | None) -> None:
        if interruption.repeats and not grace.is_over:
            return
        interruption.note(number)
        if grace.has_begun or not stop():
            interruption.end(number)
        grace.begin(number)
        # not by print: the signal may have come in the middle of one
        line = (
            f"\ninterrupted: finishing and saving the steps in flight (up to launch.stop_timeout={seconds:g} s)"
            f"{'' if interruption.patient else '; interrupt again to stop now'}\n"
        )
        with contextlib.suppress(OSError):
            os.write(1, line.encode())

    with contextlib.closing(_GracePeriod(seconds)) as grace, handled_by(handle, STOPPING):
        yield


class _GracePeriod:
    """Sends this process a signal again once the period is over.

    It begins in a signal's handler, which may have interrupted anything: the thread exists before, and waking it takes
    no lock.
    """

    def __init__(self, seconds: float) -> None:
        self.has_begun = self.is_over = False
        self._seconds = seconds
        self._read, self._write = os.pipe()
        self._thread = threading.Thread(target=self._wait, name="grace period", daemon=True)
        self._thread.start()

    def begin(self, number: int) -> None:
        """Begins the period, after which the signal is sent."""
        self.has_begun = True
        os.write(self._write, bytes([number]))

    def close(self) -> None:
        """Cancels the signal."""
        os.write(self._write, bytes([_CLOSED]))
        self._thread.join()
        os.close(self._read)
        os.close(self._write)

    def _wait(self) -> None:
        (number,) = os.read(self._read, 1)
        closed = number == _CLOSED or select.select([self._read], [], [], self._seconds)[0]
        if not closed:
            self.is_over = True
            os.kill(os.getpid(), number)
