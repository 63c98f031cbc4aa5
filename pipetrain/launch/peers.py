"""The other workers of a run that an outer launcher started, as one of them sees them."""

import contextlib
import os
import signal
import socket
from collections.abc import Callable

from torch.distributed import Store

from pipetrain.launch.failure_note import FailureKind, FailureNote, named_failure
from pipetrain.launch.heartbeat import Heartbeat
from pipetrain.launch.reach import Reach
from pipetrain.launch.roll_call import RollCall, is_gone
from pipetrain.launch.watchdog import Watched
from pipetrain.tracking.run_directory import RunDirectory


class Peers:
    """Workers that tell each other by the store that they live; there is no launcher of ours that could look at them.

    Args:
        watched: this worker.
        run: the run directory.
        store: a connection that only the watching thread uses.

    Attributes:
        parted: whether one of another machine gives no sign of life any more.
    """

    def __init__(self, watched: Watched, run: RunDirectory, store: Store) -> None:
        self._watched = watched
        self._run = run
        self._store = store
        self._calls = RollCall()
        self._reach = Reach(watched, run)
        self.parted = False

    def meet(self, own: Heartbeat) -> None:
        """Waits for the first sign of life of every other worker, so that none is lost unheard of."""
        self._store.set(_key(own.process), own.encoded().decode())
        self._calls.look()
        for p in range(self._watched.num_processes):
            if p != own.process:
                self._calls.hear(Heartbeat.decoded(self._store.get(_key(p))))
        self._reach.begin()

    def exchange(self, own: Heartbeat) -> None:
        """Gives a sign of life, and looks at those of the others."""
        self._store.set(_key(own.process), own.encoded().decode())
        self._calls.look()
        for p in range(self._watched.num_processes):
            if p != own.process and self._store.check([_key(p)]):
                self._calls.hear(Heartbeat.decoded(self._store.get(_key(p))))
                self._judge(p)
        self._reach.answered()
        if own.finished:
            self.close()

    def close(self) -> None:
        """Nobody looks any more."""
        self._reach.close()

    def failure(self, name: Callable[[int], str]) -> str | None:
        """Which of them failed, and how, as far as one can tell from here; None where the run was merely told to end.

        Args:
            name: what a process is called.
        """
        if failure := named_failure(self._run, name):
            return failure
        lost = self.lost()
        return f"{name(lost[0])} failed: its process ended without a word" if lost else None

    def lost(self) -> list[int]:
        """The processes of this machine that have ended though their part of the run was not done, and nobody asked."""
        heard = [self._calls.last(p) for p in range(self._watched.num_processes)]
        gone = [beat for beat in heard if beat is not None and is_gone(beat)]
        with contextlib.suppress(RuntimeError):  # the outer launcher, which hosts the store, is gone as well
            gone = [Heartbeat.decoded(self._store.get(_key(beat.process))) for beat in gone]  # their last word
        return [beat.process for beat in gone if not (beat.finished or beat.told)]

    def is_first(self) -> bool:
        """Whether this process is the first of all to ask."""
        try:
            return self._store.add("pipetrain/first", 1) == 1
        except RuntimeError:
            return True  # nobody can tell

    def _judge(self, process: int) -> None:
        """Ends a worker without a heartbeat: one that is stopped, or never releases the interpreter, cannot do so."""
        beat, limit = self._calls.last(process), self._watched.hang_timeout
        if beat is None or beat.finished or is_gone(beat) or self._calls.silence(process) <= limit:
            return
        FailureNote(FailureKind.HUNG, f"no sign of life for {limit:.0f} s").leave(self._run, process)
        if beat.host != socket.gethostname():
            self.parted = True
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(beat.pid, signal.SIGKILL)


def _key(process: int) -> str:
    return f"pipetrain/beat/{process}"
