"""Signs of life of a worker: its activity, its heartbeats, and the clock that measures its silence."""

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Self

from pipetrain.data.files import strict_json
from pipetrain.data.files.json_reader import from_json
from pipetrain.engine.errors import ConfigError
from pipetrain.engine.processes import machine_id
from pipetrain.runner.launch.stores import Board

BEAT_SECONDS = 0.5
"""Seconds between two heartbeats of a worker."""
_LONGEST_SECONDS = 2.0
"""So much of a pause between two looks at a clock counts."""


@dataclass
class Activity:
    """Activity of a worker's main thread.

    Attributes:
        waiting: True if it waits for another process: the worker does not hang, the other one may.
        finished: True if this process has done its part of the run.
        signaled: True if a signal ends it.
        changes: number of activities begun or ended.
    """

    what: str = "starting"
    waiting: bool = False
    starting: bool = True
    finished: bool = False
    signaled: bool = False
    changes: int = 0

    def now(self, what: str) -> None:
        """Sets the description of a new activity."""
        self.what = what
        self.changes += 1

    def begin(self) -> None:
        """Marks the beginning of the run: all is built and connected."""
        self.starting = False
        self.changes += 1

    def finish(self) -> None:
        """Marks the end of all activities."""
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


@cache
def process_namespace() -> str:
    """Name of the machine and of the PID namespace of this process: containers may share the name of their machine."""
    with contextlib.suppress(OSError):  # not on Linux
        return f"{socket.gethostname()} {machine_id()} {Path('/proc/self/ns/pid').readlink()}"
    return socket.gethostname()


@dataclass(frozen=True)
class Heartbeat:
    """A sign of life of a worker.

    Attributes:
        pid, host: number of its process in the `process_namespace` host.
        born: when its process began, in the system's ticks; 0 if unknown.
    """

    process: int
    pid: int
    host: str
    number: int
    born: int = 0
    activity: Activity = field(default_factory=Activity)

    @property
    def is_local(self) -> bool:
        """True if the worker is on this machine and in the PID namespace of this process."""
        return self.host == process_namespace()

    @property
    def is_gone(self) -> bool:
        """True if the worker was on this machine and has ended."""
        if not self.is_local:
            return False
        try:
            os.kill(self.pid, 0)
        except (ProcessLookupError, PermissionError):  # the number is unused, or another user's process has it by now
            return True
        return False

    def publish(self, store: Board) -> None:
        """Publishes this heartbeat to the other processes."""
        store.set(key_of(self.process), json.dumps(asdict(self)))

    @classmethod
    def read(cls, store: Board, processes: Iterable[int]) -> dict[int, Self]:
        """Worker -> its newest heartbeat; without workers that have no valid one in the store."""
        keys = {process: key_of(process) for process in processes}
        if not store.check([*keys.values()]):  # two requests if all are there
            keys = {process: key for process, key in keys.items() if store.check([key])}
        entries = store.multi_get([*keys.values()]) if keys else []
        beats = zip(keys, map(cls.parsed, entries), strict=True)
        return {process: beat for process, beat in beats if beat is not None and beat.process == process}

    @classmethod
    def parsed(cls, entry: bytes) -> Self | None:
        """The heartbeat in an entry of the store; None if the entry holds something else."""
        with contextlib.suppress(ValueError, ConfigError):
            beat: Self = from_json(cls, strict_json.loads(entry))
            return beat
        return None


def key_of(process: int) -> str:
    """Key of a worker's heartbeat in the store."""
    return f"pipetrain/beat/{process}"


def birth_and_parent(pid: int) -> tuple[int, int]:
    """When a process of this machine began, in the system's ticks, and the number of its parent; 0 if unknown."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return int(fields[19]), int(fields[1])
    return 0, 0


class SuspendAwareClock:
    """A clock that stands still while its process does.

    Ctrl-Z, a batch system or a closed laptop stops all processes of a run together, and no process hangs. A process is
    not notified that it was stopped, but notices that it has not looked at the clock for long.
    """

    def __init__(self) -> None:
        self._seen = time.monotonic()
        self._seconds = 0.0

    def look(self) -> float:
        """Seconds so far; must be called more often than every `_LONGEST_SECONDS`."""
        now = time.monotonic()
        self._seconds += min(now - self._seen, _LONGEST_SECONDS)
        self._seen = now
        return self._seconds
