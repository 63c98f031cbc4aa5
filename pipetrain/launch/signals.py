"""The signals that end a run: how a command handles them, and how a worker's watchdog reads them."""

import contextlib
import os
import select
import signal
import threading
from collections.abc import Callable, Collection, Iterator
from types import FrameType
from typing import Any

from pipetrain.errors import PreemptedError
from pipetrain.libraries.processes import ENDING

_PREEMPTING = ("SIGTERM", "SIGUSR1")

ENDING_A_WORKER = (signal.SIGTERM, signal.SIGINT)
"""Others are the library's or the user's own, such as SIGCHLD of a data set's workers."""

WARNING = signal.SIGUSR1
"""A batch system is about to end the run. A user's own code may have another use for it."""
_NOTED = (*ENDING_A_WORKER, WARNING)

_pipes: set[int] = set()
"""File descriptors of the signal pipes in use in this process; at most one, except in tests."""
_forking = threading.local()
"""The signals that a thread had blocked before it forked."""

Handler = Callable[[int, FrameType | None], object]


class Interruption:
    """The first signal that came to end a command."""

    def __init__(self) -> None:
        self._name: str | None = None
        self._settled = False

    def note(self, number: int) -> None:
        """Takes note of a signal that ends the command later, if at all."""
        self._name = self._name or signal.Signals(number).name

    def handle(self, number: int, _frame: FrameType | None) -> None:
        """Notes a signal, and raises KeyboardInterrupt unless the end is already settled."""
        self.note(number)
        if not self._settled:
            raise KeyboardInterrupt(self._name)

    @property
    def preempts(self) -> bool:
        """True if the signal is one by which a batch system preempts a run and starts it again later."""
        return self._name in _PREEMPTING

    def settle(self) -> None:
        """Settles how the run or the command ends: later signals do not change that, and are only noted."""
        self._settled = True

    def begin(self) -> None:
        """Before a run, which signals are to end; the one before it may have been settled.

        Raises:
            KeyboardInterrupt: a signal has come.
        """
        self._settled = False
        self.check()

    def check(self) -> None:
        """Raises what a signal asked for and did not get, such as an exception that got lost in a library's import.

        Raises:
            KeyboardInterrupt: a signal has come.
        """
        if self._name is not None:
            raise KeyboardInterrupt(self._name)


_of_command: Interruption | None = None
"""Interruption of the command that this process runs."""


def handle_from_now_on() -> Interruption:
    """Lets signals end the command until the process ends; call `ignored_from_now_on` when that is near."""
    global _of_command
    _of_command = Interruption()
    _handle(_of_command.handle)
    return _of_command


def ignore_from_now_on() -> None:
    """Leaves the exit code as it is: the interpreter takes a moment to end, and forgets handlers first."""
    _handle(signal.SIG_IGN)


def _handle(handler: "Handler | signal.Handlers") -> None:
    for number in _changeable(ENDING):
        signal.signal(number, handler)


@contextlib.contextmanager
def interruptible() -> Iterator[Interruption]:
    """Around a run: a signal that ends it raises KeyboardInterrupt. Afterwards signals do what they did before.

    Raises:
        PreemptedError: in place of a KeyboardInterrupt, where the signal was a batch system's, and no command of ours
            is there to know.
    """
    interruption = _of_command or Interruption()
    with handled_by(interruption.handle):
        try:
            interruption.begin()
            yield interruption
        except KeyboardInterrupt as error:
            if interruption.preempts and _of_command is None:
                raise PreemptedError(*error.args) from error
            raise


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
    changed = _changeable(numbers)
    for number in changed:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, was in changed.items():
            signal.signal(number, was)


def _changeable(numbers: Collection[int]) -> dict[int, Any]:
    """The handlers of signals that are not ignored, and whose handler is Python's."""
    handlers = {number: signal.getsignal(number) for number in numbers}
    return {number: handler for number, handler in handlers.items() if handler not in (signal.SIG_IGN, None)}


class SignalPipe:
    """A pipe into which Python writes the number of each signal that has a handler; `wait` reads them."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)  # first: no signal gets lost in between
        self._handlers = {n: signal.signal(n, _note) for n in _NOTED if n != WARNING or _is_free(n)}
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _NOTED)
        _pipes.add(self._read)

    def wait(self, seconds: float) -> bytes:
        """The numbers of the signals that came, after waiting at most so many seconds for one."""
        signals = os.read(self._read, 4096) if select.select([self._read], [], [], seconds)[0] else b""
        return signals if signal.getsignal(WARNING) is _note else signals.replace(bytes([WARNING]), b"")

    def wake(self) -> None:
        """Ends the current or next wait."""
        os.write(self._write, bytes(1))

    def close(self) -> None:
        """Restores the handlers."""
        signal.set_wakeup_fd(-1)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        _pipes.discard(self._read)
        os.close(self._read)
        os.close(self._write)


def _is_free(number: int) -> bool:
    """True if no user code handles a signal."""
    handler = signal.getsignal(number)
    return handler is signal.SIG_DFL or isinstance(getattr(handler, "__self__", None), Interruption)


def _note(*_: object) -> None:
    """Python has written the number by now."""


def _hold() -> None:
    """Before a fork: what reaches the new process before it has forgotten the pipe would be read as the worker's."""
    if _pipes:
        _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _NOTED)


def _let_go() -> None:
    if _pipes:
        signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _forget() -> None:
    """In a process that a worker has forked: its signals are not the worker's."""
    if _pipes:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with the worker
        if signal.getsignal(WARNING) is _note:
            signal.signal(WARNING, signal.SIG_IGN)
    _let_go()
    _pipes.clear()


os.register_at_fork(before=_hold, after_in_parent=_let_go, after_in_child=_forget)
