"""A process that reads samples: it lives exactly as long as the process that started it."""

import multiprocessing
import os
import signal
import sys
import threading
from multiprocessing.context import BaseContext, ForkContext, ForkProcess
from multiprocessing.popen_fork import Popen
from multiprocessing.process import BaseProcess

from typing_extensions import override

from pipetrain.engine.processes import ENDING, die_with_parent

_PATIENCE_SECONDS = 0.2
"""Time that a reader is given to end by itself, which takes longer only in the middle of a minibatch."""


class _Started(Popen):
    """The handle of a reader process that has started."""

    @override
    def terminate(self) -> None:
        """Kills it: it does not heed SIGTERM, which Python's exit sends to a reader that is left, and waits for it."""
        former = signal.getsignal(signal.SIGCHLD)
        quiet = former is not None and threading.current_thread() is threading.main_thread()
        if quiet:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler raises an error for a killed reader
        self.kill()
        self.wait()
        if quiet:
            signal.signal(signal.SIGCHLD, former)


class ReaderProcess(ForkProcess):
    """A process that reads samples. Until `leave_signals` is called in it, signals that end a run wait."""

    @staticmethod
    @override
    def _Popen(process_obj: BaseProcess) -> Popen:
        return _Started(process_obj)

    @override
    def start(self) -> None:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        try:
            super().start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    @override
    def run(self) -> None:
        die_with_parent(signal.SIGKILL)
        parent = multiprocessing.parent_process()
        if parent is not None and parent.pid == os.getppid():
            super().run()  # else it had ended before this process could ask for that

    @override
    def join(self, timeout: float | None = None) -> None:
        """Waits briefly for the process to end; torch would wait up to 5 s for each before it kills them."""
        super().join(None if timeout is None else min(timeout, _PATIENCE_SECONDS))


class ReaderContext(ForkContext):
    """Starts such processes for a DataLoader.

    A fork server in between would have to end with its parent, too, and the samples' data set to be pickled.
    """

    Process = ReaderProcess


def context() -> BaseContext | None:
    """Multiprocessing context of processes that read samples; None, for Python's default, if fork is not safe here."""
    return ReaderContext() if sys.platform == "linux" else None


def leave_signals(_worker: int) -> None:
    """Has this process leave the signals that end a run to its parent, which may then need more samples.

    torch gives SIGTERM a handler when the process begins; this comes after it, as a DataLoader's `worker_init_fn`.
    """
    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _nothing)  # not SIG_IGN, which the programs that a data set starts would inherit
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)


def _nothing(*_: object) -> None:
    """The parent has got the signal, or will."""
