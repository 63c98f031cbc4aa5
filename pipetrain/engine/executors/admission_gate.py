"""Stops all processes of a run between the same two minibatches, or parts of an evaluation, to end it or to pause."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext


class BrokenOffError(Exception):
    """The run is to end, and with it the evaluation that this ends in every process."""


class AdmissionGate:
    """Admits minibatches; shutting it stops every process at the same minibatch.

    1. A thread or signal handler that wants a drain holds the gate of every process, which reports its progress.
    2. It shuts all gates after the minibatch of the process that is ahead. Minibatches in flight are finished.
    3. If the run is only to pause, each process opens its gate again.

    The parts of an evaluation pass the gate like minibatches, and are counted with them.

    Args:
        alone: True if this is the only process.

    Attributes:
        begun: number of minibatches that have begun or wait at the gate.
        ended_after: number of minibatches admitted before one was refused; None while none is.
        before: called before each minibatch; an exception ends the run.
        waiting: the context of a wait at the held gate.
        wanted: True if this process has asked for a drain.
        ends: True if the run is to end after it.
        openings: number of times that the gate was opened again.
    """

    def __init__(self, *, alone: bool = False) -> None:
        self.begun = 0
        self.ended_after: int | None = None
        self.before: Callable[[], object] = lambda: None
        self.waiting: Callable[[], AbstractContextManager[object]] = nullcontext
        self.wanted = False
        self.ends = False
        self.openings = 0
        self._alone = alone
        self._held = False
        self._end: int | None = None
        self._shut = threading.Event()

    def admits(self, minibatches: int = 1) -> bool:
        """True if the next minibatch may begin; waits while the gate is held.

        A replica passes by several at a time, of which the last may be its own.
        """
        self.before()
        return self.admits_part(minibatches)

    def admits_part(self, minibatches: int) -> bool:
        """Same as `admits` for parts of an evaluation: `before` is not called."""
        self.begun += minibatches  # before `_held` is read: a thread that holds the gate then counts this minibatch
        if not self._held:
            return True
        with self.waiting():
            self._shut.wait()
        assert self._end is not None
        if self.begun <= self._end:
            return True
        self.ended_after = self._end
        return False

    def pause(self) -> None:
        """Asks for a drain, after which the run continues once the gate is opened."""
        self.wanted = True
        if self._alone and self._end is None:
            self.shut(self.hold())

    def end(self) -> None:
        """Asks for a drain, after which the run ends."""
        self.ends = True
        self.pause()

    def hold(self) -> int:
        """Admits no further minibatch for now. Returns the number that have begun or wait at the gate."""
        self._held = True
        return self.begun

    def shut(self, minibatches: int) -> None:
        """Admits the first `minibatches` minibatches and no more."""
        self._end = minibatches
        self._shut.set()

    def open(self) -> None:
        """Admits minibatches again, starting with the first that was refused."""
        assert self._end is not None
        self.begun = self._end
        self.ended_after = None
        self.wanted = self._held = False
        self._shut.clear()
        self._end = None
        self.openings += 1
        if self.ends:  # a signal has come since its processes agreed to continue
            self.pause()

    def end_here(self) -> None:
        """Ends the run at the present minibatch, on which all processes have agreed by other means."""
        self.ends = True
        self.ended_after = self.begun
