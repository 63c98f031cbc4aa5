"""Where a run can be broken off, or pause: between two minibatches, or two parts of an evaluation, in all processes."""

import threading
from collections.abc import Callable


def _nothing() -> None:
    pass


class BrokenOffError(Exception):
    """The run is to end, and with it the evaluation that this ends in every process."""


class AdmissionGate:
    """What the main thread of each process passes before each minibatch, in the same order, until it is shut.

    Whoever wants the pipeline drained, in another thread or in a signal's handler, first holds the gate of every
    process, which tells how far each has come, and then shuts all of them behind the minibatch of the one that is
    ahead. Those on their way are finished. Where the run is only to pause, each process opens its gate again.

    The parts of an evaluation pass the gate like minibatches, and are counted with them.

    Args:
        alone: whether this is the only process.

    Attributes:
        ended_after: minibatches that were let through, once one was not; None before, and once it is open again.
        before: called before each minibatch; what it raises ends the run.
        wanted: whether somebody here wants the pipeline drained.
        ends: whether the run is to end then.
        openings: how often the gate was opened again.
    """

    def __init__(self, *, alone: bool = False) -> None:
        self.ended_after: int | None = None
        self.before: Callable[[], None] = _nothing
        self.wanted = False
        self.ends = False
        self.openings = 0
        self._alone = alone
        self._asked = 0
        self._held = False
        self._end: int | None = None
        self._shut = threading.Event()

    @property
    def begun(self) -> int:
        """How many minibatches have begun, or wait in front of the gate."""
        return self._asked

    def admits(self, minibatches: int = 1) -> bool:
        """Whether the next minibatch begins; waits where the gate is held.

        A replica, which has some of the minibatches alone, passes by several at a time, of which the last may be its
        own.
        """
        self.before()
        return self.admits_part(minibatches)

    def admits_part(self, minibatches: int = 1) -> bool:
        """As `admits`, for what is no minibatch of the training: `before` is not called."""
        self._asked += minibatches  # before the look at `_held`: whoever holds the gate then counts this minibatch
        if not self._held:
            return True
        self._shut.wait()
        assert self._end is not None
        if self._asked <= self._end:
            return True
        self.ended_after = self._end
        return False

    def pause(self) -> None:
        """Wants the pipeline drained; the run goes on once the gate is opened."""
        self.wanted = True
        self._shut_here()

    def end(self) -> None:
        """Wants the pipeline drained, and the run to end then."""
        self.ends = True
        self.pause()

    def hold(self) -> int:
        """Lets no further minibatch through for the time being; how many have begun, or wait in front of the gate."""
        self._held = True
        return self._asked

    def shut(self, minibatches: int) -> None:
        """Lets those through that are among the first so many, and no other."""
        self._end = minibatches
        self._shut.set()

    def open(self) -> None:
        """Lets minibatches through again, from the first one on that was not."""
        assert self._end is not None
        self._asked = self._end
        self.ended_after = None
        self.wanted = self._held = False
        self._shut.clear()
        self._end = None
        self.openings += 1
        if self.ends:  # a signal has come since its processes agreed to go on
            self.pause()

    def end_here(self) -> None:
        """Ends the run where every process has come to by now, which all have agreed on in another way."""
        self.ends = True
        self.ended_after = self._asked

    def _shut_here(self) -> None:
        if self._alone and self._end is None:
            self.shut(self.hold())
