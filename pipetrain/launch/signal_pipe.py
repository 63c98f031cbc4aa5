"""Signals that a thread reads: a Python handler does not run while the main thread waits inside Gloo."""

import os
import select
import signal
import threading

from pipetrain.launch.signals import Interruption

ENDING_A_WORKER = (signal.SIGTERM, signal.SIGINT)
"""Others are the library's or the user's own, such as SIGCHLD of a data set's workers."""

WARNING = signal.SIGUSR1
"""A batch system is about to end the run. A user's own code may have another use for it."""
_NOTED = (*ENDING_A_WORKER, WARNING)

_pipes: set[int] = set()
"""Those at work in this process, at most one but for tests."""
_forking = threading.local()
"""The signals that a thread had blocked before it forked."""


class SignalPipe:
    """Python writes the number of each signal that has a handler into a pipe; one that ends a worker gets it."""

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
        """Ends a wait."""
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
    """Whether no code of the user's handles a signal."""
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
