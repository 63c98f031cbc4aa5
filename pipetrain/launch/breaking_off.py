"""What a signal does to a run that trains: the first one lets it drain and save, the second ends it at once."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from pipetrain.launch.signals import ENDING, Interruption

_NUMBERS = tuple(number for number in ENDING if number != signal.SIGQUIT)  # which is for those in a hurry


@contextlib.contextmanager
def broken_off_by(stop: Callable[[], bool], seconds: float) -> Iterator[Interruption]:
    """Around training in this process, or in those that it has started; yields whether a signal came.

    Args:
        stop: called for the first signal; returns whether the run will end by itself, with its checkpoint.
        seconds: how long that may take; what then ends the run is the signal once more. 0: signals end it at once.
    """
    interruption = Interruption()
    if threading.current_thread() is not threading.main_thread() or not seconds:
        yield interruption  # only the main thread has handlers
        return
    before = {number: signal.getsignal(number) for number in _NUMBERS}
    handled = {number: was for number, was in before.items() if callable(was)}
    timers: list[threading.Timer] = []

    def handle(number: int, frame: FrameType | None) -> None:
        interruption.note(number)  # a run that completes all the same must not swallow it: a sweep ends
        if timers or not stop():
            handled[signal.Signals(number)](number, frame)
            return
        timers.append(threading.Timer(seconds, os.kill, (os.getpid(), number)))
        timers[0].daemon = True
        timers[0].start()
        _tell(seconds)

    for number in handled:
        signal.signal(number, handle)
    try:
        yield interruption
    finally:
        for timer in timers:
            timer.cancel()
        for number, was in handled.items():
            signal.signal(number, was)


def _tell(seconds: float) -> None:
    # not by print: the signal may have come in the middle of one
    line = (
        f"\ninterrupted: the steps on their way are finished and saved, for up to launch.stop_timeout={seconds:g} s; "
        "once more ends the run at once\n"
    )
    with contextlib.suppress(OSError):
        os.write(1, line.encode())
