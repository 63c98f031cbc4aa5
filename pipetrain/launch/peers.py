"""The other workers of a run that an outer launcher started, as one of them sees them."""

import contextlib
import os
import signal
import socket

from torch.distributed import Store

from pipetrain.launch import lifeline
from pipetrain.launch.heartbeat import Heartbeat
from pipetrain.launch.roll_call import RollCall, is_gone
from pipetrain.launch.watchdog import Watched, leave_failure_note


class Peers:
    """Workers that tell each other by the store that they live; there is no launcher of ours that could look at them.

    Args:
        watched: this worker.
        store: a connection that only the watching thread uses.
    """

    def __init__(self, watched: Watched, store: Store) -> None:
        self._watched = watched
        self._store = store
        self._calls = RollCall()

    def exchange(self, own: Heartbeat) -> None:
        """Gives a sign of life, and looks at those of the others."""
        self._store.set(_key(own.process), own.encoded().decode())
        self._calls.look()
        for p in range(self._watched.num_processes):
            if p != own.process and self._store.check([_key(p)]):
                self._calls.hear(Heartbeat.decoded(self._store.get(_key(p))))
                self._judge(p)

    def lost(self) -> list[int]:
        """The processes of this machine that have ended though their part of the run was not done, and nobody asked."""
        beats = [self._calls.last(p) for p in range(self._watched.num_processes)]
        return [b.process for b in beats if b is not None and not (b.finished or b.told) and is_gone(b)]

    def _judge(self, process: int) -> None:
        """Ends a worker without a heartbeat: one that is stopped, or never releases the interpreter, cannot do so."""
        beat, limit = self._calls.last(process), self._watched.hang_timeout
        if beat is None or beat.finished or is_gone(beat) or self._calls.silence(process) <= limit:
            return
        leave_failure_note(self._watched.run, process, f"hung: no sign of life for {limit:.0f} s")
        if beat.host != socket.gethostname():
            lifeline.end(lifeline.EXIT_LOST)
        with contextlib.suppress(ProcessLookupError):
            os.kill(beat.pid, signal.SIGKILL)


def _key(process: int) -> str:
    return f"pipetrain/beat/{process}"
