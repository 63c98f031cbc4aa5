"""The signals that end a run: how a command handles them, and how a worker's watchdog reads them."""

import contextlib
import os
import select
import signal
import threading
from collections.abc import Callable, Collection, Iterator
from types import FrameType
from typing import Any

from pipetrain.engine.errors import PreemptedError
from pipetrain.engine.processes import ENDING

_PREEMPTING = ("SIGTERM", "SIGUSR1")

STOPPING = tuple(number for number in ENDING if number != signal.SIGQUIT)
"""Signals for which a run first saves; SIGQUIT always ends it immediately."""

ENDING_A_WORKER = (signal.SIGTERM, signal.SIGINT)
"""Signals that end a worker; other signals belong to libraries or the user, such as SIGCHLD of a data set's workers."""

WARNING = signal.SIGUSR1
"""Warning that a batch system is about to end the run; the user's own code may have another use for it."""
_NOTED = (*ENDING_A_WORKER, WARNING)

_pipes: set[int] = set()
"""File descriptors of the signal pipes in use in this process; at most one, except in tests."""
_forking = threading.local()
"""The signals that a thread had blocked before it forked."""

Handler = Callable[[int, FrameType | None], object]


class Interruption:
    """The first signal that was to end a command.

    Attributes:
        name: of the signal; None while none has come.
        patient: True to ignore a second signal: it may repeat the first one, from the process that started this one
            and decides how long to wait.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.patient = False
        self._settled = False

    def note(self, number: int) -> None:
        """Records a signal without ending the command."""
        self.name = self.name or signal.Signals(number).name

    def handle(self, number: int, _frame: FrameType | None) -> None:
        """Handler of a signal: ends the run or command, unless it `repeats` another."""
        if not self.repeats:
            self.end(number)

    @property
    def repeats(self) -> bool:
        """True if the next signal must be ignored."""
        return self.patient and self.name is not None

    def end(self, number: int) -> None:
        """Notes a signal, and raises KeyboardInterrupt unless the end is already settled."""
        self.note(number)
        if not self._settled:
            raise KeyboardInterrupt(self.name)

    @property
    def preempts(self) -> bool:
        """True if the signal is one with which a batch system preempts a run that it starts again later."""
        return self.name in _PREEMPTING

    def settle(self) -> None:
        """Makes the end of the run or command final: later signals are only noted."""
        self._settled = True

    def begin(self) -> None:
        """Lets signals end the next run, after one that may have been settled; raises as `check`."""
        self._settled = False
        self.check()

    def check(self) -> None:
        """Raises KeyboardInterrupt if a signal has come: the first one may be lost, such as in a library's import."""
        if self.name is not None:
            raise KeyboardInterrupt(self.name)


_of_command: Interruption | None = None
"""Interruption of the command that this process runs."""


def handle_from_now_on() -> Interruption:
    """Lets signals end the command until the process ends; call `ignore_from_now_on` when that is near."""
    global _of_command
    _of_command = Interruption()
    _set_handler(_of_command.handle)
    return _of_command


def ignore_from_now_on() -> None:
    """Preserves the exit code: the interpreter takes a moment to end, and removes handlers first."""
    _set_handler(signal.SIG_IGN)


def _set_handler(handler: "Handler | signal.Handlers", numbers: Collection[int] = ENDING) -> dict[int, Any]:
    """Sets a handler, except where a signal is ignored or its handler is not Python's; returns the former handlers."""
    former = {number: signal.getsignal(number) for number in numbers}
    former = {number: each for number, each in former.items() if each not in (signal.SIG_IGN, None)}
    for number in former:
        signal.signal(number, handler)
    return former


@contextlib.contextmanager
def interruptible() -> Iterator[Interruption]:
    """Around a run: a signal that ends it raises KeyboardInterrupt. Afterwards the former handlers are back.

    Raises:
        PreemptedError: instead of KeyboardInterrupt, if a batch system sent the signal and this is not our command.
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
def passed_on(pass_on: Callable[[str], object]) -> Iterator[Interruption]:
    """Around runs in processes that this one starts: the first signal is passed on, and the second raises.

    The processes begin with the signals blocked, until they handle them: a launcher such as joblib kills all of them if
    one dies.

    Args:
        pass_on: called in the handler, with the name of the signal.

    Raises:
        KeyboardInterrupt: a second signal came, or SIGQUIT.
    """
    interruption, ended = _of_command or Interruption(), threading.Event()

    def handle(number: int, _frame: FrameType | None) -> None:
        if interruption.name is not None:
            interruption.end(number)
        interruption.note(number)
        pass_on(signal.Signals(number).name)

    # a thread in which the signals are not blocked; handlers run in the main thread all the same
    receiver = threading.Thread(target=ended.wait, name="signals", daemon=True)
    receiver.start()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        with handled_by(handle, STOPPING):
            yield interruption
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        ended.set()
        receiver.join()


def follow_from_now_on() -> Interruption:
    """Handles signals in a process that was started within `passed_on`; they are only noted until a run begins."""
    interruption = handle_from_now_on()
    interruption.patient = True
    interruption.settle()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    return interruption


@contextlib.contextmanager
def blocked() -> Iterator[None]:
    """Around the start of processes that should ignore a Ctrl-C at the terminal: they inherit the mask."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, set(ENDING) - {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def handled_by(handler: Handler | signal.Handlers, numbers: Collection[int] = ENDING) -> Iterator[None]:
    """Around code for which signals have another handler.

    Signals that are ignored stay ignored, as nohup requires; so do signals whose handler is not Python's.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread has handlers
        return
    former = _set_handler(handler, numbers)
    try:
        yield
    finally:
        for number, each in former.items():
            signal.signal(number, each)


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
        """Numbers of the signals that have arrived; waits at most `seconds` for one."""
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


def _before_fork() -> None:
    """Before a fork: a signal to the new process while it has its parent's pipe would be read as the worker's."""
    if _pipes:
        _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _NOTED)


def _after_fork() -> None:
    if _pipes:
        signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _after_fork_in_child() -> None:
    """In a process that a worker has forked: its signals are not the worker's."""
    if _pipes:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with the worker
        if signal.getsignal(WARNING) is _note:
            signal.signal(WARNING, signal.SIG_IGN)
    _after_fork()
    _pipes.clear()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
