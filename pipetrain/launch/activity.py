"""What a worker's main thread does, for its watchdog to see."""

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass


@dataclass
class Activity:
    """What a worker's main thread does.

    Attributes:
        what: in words.
        waiting: whether it waits for another process: whoever waits does not hang, the one waited for may.
        starting: whether it has yet to begin with the run.
        finished: whether all that this process had to do for the run is done.
        changes: how often it has begun or ended something.
    """

    what: str = "starting"
    waiting: bool = False
    starting: bool = True
    finished: bool = False
    changes: int = 0

    def now(self, what: str) -> None:
        """The main thread starts something else."""
        self.what = what
        self.changes += 1

    def begin(self) -> None:
        """All is built and connected; the run begins."""
        self.starting = False
        self.changes += 1

    def finish(self) -> None:
        """The process has nothing left to do but to end."""
        self.what, self.waiting, self.finished = "ending", False, True
        self.changes += 1

    def wait(self, what: str) -> AbstractContextManager[None]:
        """Around a wait for another process."""
        return self._within(f"{self.what}, waiting for {what}", waiting=True)

    def compute(self, what: str) -> AbstractContextManager[None]:
        """Around a computation inside such a wait: a library waits and computes in one call."""
        return self._within(what, waiting=False)

    @contextlib.contextmanager
    def _within(self, what: str, *, waiting: bool) -> Iterator[None]:
        before = self.what, self.waiting
        self.what, self.waiting = what, waiting
        self.changes += 1
        try:
            yield
        finally:
            self.what, self.waiting = before
            self.changes += 1
