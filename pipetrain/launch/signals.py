"""The signals that end a run: how they reach it, and that everything is as before when it has ended."""

import contextlib
import signal
import threading
from collections.abc import Callable, Collection, Iterator
from types import FrameType

from pipetrain.errors import PreemptedError

_NAMES = ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP", "SIGQUIT")
ENDING = tuple(getattr(signal, name) for name in _NAMES if hasattr(signal, name))
"""Ctrl-C, a batch system, its warning, a terminal that is closed, Ctrl-\\."""
_PREEMPTING = ("SIGTERM", "SIGUSR1")

Handler = Callable[[int, FrameType | None], object]


class Interruption:
    """The first signal that came to end a run."""

    def __init__(self) -> None:
        self._name: str | None = None

    def note(self, number: int) -> None:
        """Takes note of a signal that ends the run later, if at all."""
        self._name = signal.Signals(number).name

    def handle(self, number: int, _frame: FrameType | None) -> None:
        """Handles a signal."""
        self.note(number)
        raise KeyboardInterrupt(self._name)

    @property
    def preempts(self) -> bool:
        """Whether it was a batch system's, which starts the run again."""
        return self._name in _PREEMPTING

    def check(self) -> None:
        """Raises what a signal asked for and did not get, such as an exception that got lost in a library's import.

        Raises:
            KeyboardInterrupt: a signal has come.
        """
        if self._name is not None:
            raise KeyboardInterrupt(self._name)


@contextlib.contextmanager
def interruptible() -> Iterator[Interruption]:
    """Around a run: a signal that ends it raises KeyboardInterrupt. Afterwards signals do what they did before.

    Raises:
        PreemptedError: in place of a KeyboardInterrupt, where the signal was a batch system's.
    """
    interruption = Interruption()
    with handled_by(interruption.handle):
        try:
            yield interruption
        except KeyboardInterrupt as error:
            if interruption.preempts:
                raise PreemptedError(*error.args) from error
            raise


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Around what takes a moment and must not be broken off: signals that would end the run are ignored."""
    with handled_by(signal.SIG_IGN):
        yield


@contextlib.contextmanager
def blocked() -> Iterator[None]:
    """Around the start of processes that are not to answer a Ctrl-C at the terminal: they inherit the mask."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, set(ENDING) - {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def handled_by(handler: Handler | signal.Handlers, numbers: Collection[int] = ENDING) -> Iterator[None]:
    """Around what signals mean something else for; afterwards they do what they did before.

    Signals that are ignored stay ignored, as nohup asks for; so do those whose handler is not Python's.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread has handlers
        return
    before = {number: signal.getsignal(number) for number in numbers}
    changed = {number: was for number, was in before.items() if was not in (signal.SIG_IGN, None)}
    for number in changed:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, was in changed.items():
            signal.signal(number, was)
