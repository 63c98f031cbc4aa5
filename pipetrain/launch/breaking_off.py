"""What a signal does to a run that trains: the first one lets it drain and save, the second ends it at once."""

import contextlib
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from pipetrain.launch.signals import Interruption, handled_by
from pipetrain.libraries.processes import ENDING

_NUMBERS = tuple(number for number in ENDING if number != signal.SIGQUIT)  # which is for those in a hurry
_NO_SIGNAL = 0


@contextlib.contextmanager
def broken_off_by(stop: Callable[[], bool], seconds: float, interruption: Interruption) -> Iterator[None]:
    """Around training in this process, or in those that it has started.

    Args:
        stop: called for the first signal; returns whether the run will end by itself, with its checkpoint.
        seconds: how long that may take; what then ends the run is the signal once more. 0: signals end it at once.
        interruption: takes note of every signal, so that one which a run survives still ends its sweep.
    """
    if threading.current_thread() is not threading.main_thread() or not seconds:
        yield  # only the main thread has handlers
        return

    def handle(number: int, frame: FrameType | None) -> None:
        interruption.note(number)
        if patience.is_tried or not stop():
            interruption.handle(number, frame)
        patience.try_with(number)
        _tell(seconds)

    with contextlib.closing(_Patience(seconds)) as patience, handled_by(handle, _NUMBERS):
        yield


class _Patience:
    """Sends this process a signal once more when it has run out.

    It is tried from a signal's handler, which may have interrupted anything: the thread is there before, and what
    wakes it takes no lock.

    Attributes:
        is_tried: whether the seconds run.
    """

    def __init__(self, seconds: float) -> None:
        self.is_tried = False
        self._seconds = seconds
        self._tried, self._try = os.pipe()
        self._thread = threading.Thread(target=self._wait, name="patience", daemon=True)
        self._thread.start()

    def try_with(self, number: int) -> None:
        """Starts the seconds, after which the signal is sent."""
        self.is_tried = True
        os.write(self._try, bytes([number]))

    def close(self) -> None:
        """Sends nothing any more."""
        os.write(self._try, bytes([_NO_SIGNAL]))
        self._thread.join()
        os.close(self._tried)
        os.close(self._try)

    def _wait(self) -> None:
        (number,) = os.read(self._tried, 1)
        closed = number == _NO_SIGNAL or select.select([self._tried], [], [], self._seconds)[0]
        if not closed:
            os.kill(os.getpid(), number)


def _tell(seconds: float) -> None:
    # not by print: the signal may have come in the middle of one
    line = (
        f"\ninterrupted: the steps on their way are finished and saved, for up to launch.stop_timeout={seconds:g} s; "
        "once more ends the run at once\n"
    )
    with contextlib.suppress(OSError):
        os.write(1, line.encode())
