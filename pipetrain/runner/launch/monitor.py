"""The monitor of a run's workers: reads their heartbeats from the store, and ends or reports workers that give none.

Our launcher monitors the workers that it started (`LauncherMonitor`). Under an outer launcher, such as torchrun, each
worker monitors the others (`PeerMonitor`).
"""

import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Self

from typing_extensions import override

from pipetrain.engine.errors import RunError, is_whole
from pipetrain.engine.failure import described
from pipetrain.engine.files import strict_json
from pipetrain.engine.libraries.processes import machine_id
from pipetrain.runner.launch import fork_server, process_exit
from pipetrain.runner.launch.failure_note import FailureKind, FailureNote, named_failure
from pipetrain.runner.launch.graceful_stop import order_stop
from pipetrain.runner.launch.stores import Board, SignedStore
from pipetrain.runner.tracking.run_directory import RunDirectory
from pipetrain.runner.training.job import Job

BEAT_SECONDS = 0.5
"""Seconds between two heartbeats of a worker."""

_ENDING_SECONDS = 10.0
"""Seconds that a worker may take to end once the run is complete."""
_POLL_SECONDS = 0.05


class UnreportedWorkerFailure(Exception):  # noqa: N818  (it is the worker that failed)
    """A worker failed in a way that its exit code does not show; the message is such as `hung: 8 s in F3.0`."""

    def __init__(self, process: int, how: str) -> None:
        super().__init__(how)
        self.process = process


@cache
def process_namespace() -> str:
    """Name of the machine and of the PID namespace of this process: containers may share the name of their machine."""
    with contextlib.suppress(OSError):  # not on Linux
        return f"{socket.gethostname()} {machine_id()} {Path('/proc/self/ns/pid').readlink()}"
    return socket.gethostname()


@dataclass(frozen=True)
class Heartbeat:
    """A sign of life of a worker: its activity, and the number of this heartbeat.

    Attributes:
        process: number of the worker.
        host: its `process_namespace`, in which it has the number `pid`.
        born: when its process began, as the system counts; 0 if unknown.
        what, waiting, starting, finished, signaled, changes: as in its `Activity`.
    """

    process: int
    pid: int
    host: str
    number: int
    born: int = 0
    what: str = "starting"
    waiting: bool = False
    starting: bool = True
    finished: bool = False
    signaled: bool = False
    changes: int = 0

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
        """Leaves this heartbeat for the others."""
        store.set(_key(self.process), json.dumps(asdict(self)))

    @classmethod
    def read(cls, store: Board, process: int) -> Self | None:
        """The newest heartbeat of a worker; None if there is none, or something that no worker has left."""
        if not store.check([_key(process)]):
            return None
        try:
            beat = cls(**strict_json.loads(store.get(_key(process))))
        except (ValueError, TypeError):
            return None
        whole = (beat.pid, beat.number, beat.born, beat.changes)
        texts = isinstance(beat.host, str) and isinstance(beat.what, str)
        return beat if beat.process == process and texts and all(map(is_whole, whole)) else None


def birth_and_parent(pid: int) -> tuple[int, int]:
    """When a process of this machine began, in the system's ticks, and the number of its parent; 0 if unknown."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return int(fields[19]), int(fields[1])
    return 0, 0


class SuspendAwareClock:
    """A clock that stands still while its process does.

    Ctrl-Z, a batch system or a closed laptop stops all processes of a run together, and none of them hangs. A process
    is not notified that it was stopped, but notices that it has not looked at the clock for long.

    Args:
        most: largest number of seconds that a pause between two looks counts.
    """

    def __init__(self, most: float = 2.0) -> None:
        self._most = most
        self._seen = time.monotonic()
        self._seconds = 0.0

    def look(self) -> float:
        """Seconds so far; to be called more often than every `most` seconds."""
        now = time.monotonic()
        self._seconds += min(now - self._seen, self._most)
        self._seen = now
        return self._seconds


class Monitor(ABC):
    """Reads the workers' heartbeats, and ends a worker that gives none for `launch.hang_timeout`.

    A heartbeat that has disappeared, cannot be read, is older than the last or of another process says nothing about
    its worker, neither that it lives nor that it is silent: another program writes in the store.

    Args:
        store: where the workers meet; a connection that no other thread waits on.
        run: the run directory.
        processes: numbers of the workers to monitor.
        hang_timeout: seconds.

    Attributes:
        unreachable: True if a worker that this process cannot end gives no heartbeat any more.
    """

    def __init__(self, store: Board, run: RunDirectory, processes: Iterable[int], hang_timeout: float) -> None:
        self.unreachable = False
        self._store = store
        self._run = run
        self._processes = [*processes]
        self._hang_timeout = hang_timeout
        self._clock = SuspendAwareClock()
        self._seconds = 0.0
        self._latest: dict[int, Heartbeat] = {}
        self._heard_at: dict[int, float] = {}
        self._changed_at: dict[int, float] = {}
        self._ended: set[int] = set()

    def look(self) -> None:
        """Reads all heartbeats, and ends silent workers; to be called about every `BEAT_SECONDS`."""
        self._seconds = self._clock.look()
        self._read()
        for process in self._processes:
            beat = self._latest.get(process)
            if beat is None or self._seconds - self._heard_at[process] <= self._hang_timeout:
                continue
            if beat.finished or process in self._ended or beat.is_gone:
                continue
            # a process that is stopped, or never releases the interpreter's lock, cannot end itself
            self._ended.add(process)
            FailureNote(FailureKind.HUNG, f"no sign of life for {self._hang_timeout:.0f} s").leave(self._run, process)
            if not self._kill(beat):
                self.unreachable = True

    @abstractmethod
    def _kill(self, beat: Heartbeat) -> bool:
        """Kills a worker; False if this process must not, or cannot."""

    def _read(self) -> None:
        for process in self._processes:
            beat, last = Heartbeat.read(self._store, process), self._latest.get(process)
            if last is not None and (beat is None or beat.number < last.number or beat.pid != last.pid):
                self._heard_at[process] = self._seconds
            elif beat is not None:
                self._note(beat)

    def _note(self, beat: Heartbeat) -> None:
        last = self._latest.get(beat.process)
        if last is None or last.changes != beat.changes:
            self._changed_at[beat.process] = self._seconds
        if last is None or last.number != beat.number:
            self._heard_at[beat.process] = self._seconds
        self._latest[beat.process] = beat

    def _deadlock(self) -> tuple[int, str] | None:
        """The first worker, and what all wait for; None unless all wait and nothing has changed for long.

        If all wait for each other, no worker is to blame, and none would report it.
        """
        beats = [beat for _, beat in sorted(self._latest.items()) if not beat.finished]
        if len(self._latest) < len(self._processes) or not beats or not all(map(self._is_stuck, beats)):
            return None
        others = "; ".join(f"process {beat.process} in {beat.what}" for beat in beats[1:])
        where = f"{beats[0].what}, and every other stage waits as well: {others}" if others else beats[0].what
        return beats[0].process, f"{self._hang_timeout:.0f} s in {where}"

    def _is_stuck(self, beat: Heartbeat) -> bool:
        heard, changed = (self._seconds - at[beat.process] for at in (self._heard_at, self._changed_at))
        return beat.waiting and heard < 4 * BEAT_SECONDS and changed > self._hang_timeout


class LauncherMonitor(Monitor):
    """Monitors the workers of a job from the process that started them, as a context manager around their lives.

    A worker's own watchdog reports what its main thread does. It cannot report that the whole process is stopped,
    holds the interpreter's lock or never began, or that all workers wait for each other.

    Args:
        job: of the workers.
        store: where they leave their heartbeats.
        kill: kills a worker by its number, whatever its heartbeat says of it.
    """

    def __init__(self, job: Job, store: Board, kill: Callable[[int], None]) -> None:
        self._limits = job.settings.launch
        self._kill_worker = kill
        super().__init__(store, job.run, range(job.placement.num_processes), self._limits.hang_timeout)
        self._complete_at: float | None = None
        self._failure: Exception | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="monitor", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._closed.set()
        self._thread.join()

    def break_off(self) -> bool:
        """Makes the workers finish the minibatches in flight and save a checkpoint.

        Returns:
            False, and nothing happens, if a worker does not train yet.
        """
        self._read()
        if not all(beat is not None and not beat.starting for beat in map(self._latest.get, self._processes)):
            return False
        order_stop(self._store)
        return True

    def check(self) -> None:
        """Raises the failure that the monitor has found, if any.

        Raises:
            UnreportedWorkerFailure: a worker failed without an exit code.
            RunError: the monitor itself failed, and a worker could hang unseen.
        """
        if isinstance(self._failure, UnreportedWorkerFailure):
            raise self._failure
        if self._failure is not None:
            text = f"the thread that monitors the workers failed: {described(self._failure)}"
            raise RunError(text) from self._failure

    def check_finished(self, process: int) -> None:
        """To be called when a worker has ended with exit code 0.

        Raises:
            UnreportedWorkerFailure: the worker had not finished its part of the run.
        """
        self._read()
        beat = self._latest.get(process)
        if beat is None or not beat.finished:
            raise UnreportedWorkerFailure(process, "failed: it ended with exit code 0 before the run did")

    @override
    def _kill(self, beat: Heartbeat) -> bool:
        self._kill_worker(beat.process)
        return True

    def _watch(self) -> None:
        try:
            while not self._closed.wait(BEAT_SECONDS):
                fork_server.go_on()
                self.look()
                self._check_starts()
                self._check_deadlock()
                self._check_end()
        except Exception as error:
            self._failure = self._failure or error

    def _check_starts(self) -> None:
        limit = self._limits.start_timeout
        for process in self._processes:
            if self._latest.get(process) is None and self._seconds > limit:
                self._report(process, f"did not start within launch.start_timeout={limit:g} seconds")

    def _check_deadlock(self) -> None:
        if found := self._deadlock():
            self._report(found[0], f"hung: {found[1]}")

    def _check_end(self) -> None:
        """Ends the processes of a complete run that do not end, such as one that is stopped or waits for a thread."""
        beats = [beat for beat in map(self._latest.get, self._processes) if beat is not None and beat.finished]
        if len(beats) < len(self._processes):
            return
        if self._complete_at is None:
            self._complete_at = self._seconds
        if self._seconds - self._complete_at > _ENDING_SECONDS:
            for beat in beats:
                if not beat.is_gone:
                    self._kill(beat)

    def _report(self, process: int, how: str) -> None:
        self._failure = self._failure or UnreportedWorkerFailure(process, how)


class PeerMonitor(Monitor):
    """Monitors the other workers of a run from one of them, under an outer launcher.

    It also ends this worker if the store has not answered for `launch.hang_timeout`. A request over a link that was cut
    may wait for a quarter of an hour, and the thread that made it with it. So another thread looks at the time.

    Attributes:
        deadlocked: True if all workers wait for each other, as the note of the first one says.
    """

    def __init__(
        self, process: int, num_processes: int, store: SignedStore, run: RunDirectory, hang_timeout: float
    ) -> None:
        super().__init__(store, run, (p for p in range(num_processes) if p != process), hang_timeout)
        self.deadlocked = False
        self._signed = store
        self._process = process
        self._store_seconds = self._answered_at = 0.0
        self._closed = threading.Event()

    def meet(self, own: Heartbeat) -> None:
        """Waits for the first heartbeat of every other worker, so that the loss of each is noticed."""
        keys, published_at = [_key(p) for p in self._processes], time.monotonic()
        own.publish(self._store)
        while not self._store.check(keys):
            time.sleep(_POLL_SECONDS)  # a blocking request would keep the watching thread from the connection
            if time.monotonic() - published_at > BEAT_SECONDS:  # another program may have overwritten it
                published_at = time.monotonic()
                own.publish(self._store)
        self._read()
        threading.Thread(target=self._watch_store, name="store timeout", daemon=True).start()

    def exchange(self, own: Heartbeat) -> None:
        """Publishes this worker's heartbeat, and checks the heartbeats of the other workers."""
        own.publish(self._store)
        self.look()
        self._note(own)
        if not own.starting and (found := self._deadlock()):  # connecting has a limit of its own
            self.deadlocked = True
            FailureNote(FailureKind.HUNG, found[1]).leave(self._run, found[0])
        self._answered_at = self._store_seconds
        if own.finished:
            self.close()

    def close(self) -> None:
        """Stops watching the connection to the store."""
        self._closed.set()

    def _watch_store(self) -> None:
        clock = SuspendAwareClock()
        while not self._closed.wait(BEAT_SECONDS):
            self._store_seconds = clock.look()
            if self._store_seconds - self._answered_at > self._hang_timeout:
                reason = (
                    f"process {self._process} has not reached the machine of the first process for "
                    f"{self._hang_timeout:g} s (launch.hang_timeout)"
                )
                FailureNote(FailureKind.LOST, reason).leave(self._run, self._process)
                print(f"pipetrain: error: {reason}", file=sys.stderr, flush=True)
                process_exit.kill_tree_and_exit(process_exit.EXIT_LOST)

    @override
    def _kill(self, beat: Heartbeat) -> bool:
        # only what the same launcher has started: the store may be open to others
        if not beat.is_local or not beat.born or birth_and_parent(beat.pid) != (beat.born, os.getppid()):
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(beat.pid, signal.SIGKILL)
        return True

    def failure(self, name: Callable[[int], str]) -> str | None:
        """The failed worker and its failure, as far as known here; None if the run was merely asked to end."""
        if failure := named_failure(self._run, name):
            return failure
        lost = self.lost()
        return f"{name(lost[0])} failed: its process ended without a word" if lost else None

    def lost(self) -> list[int]:
        """Processes of this machine that ended before their part of the run was done, without a signal to them."""
        gone = [beat.process for beat in self._latest.values() if beat.is_gone]
        if not gone:
            return []
        with contextlib.suppress(RuntimeError):  # the store may be gone as well
            self._read()  # their last heartbeats
        return sorted(p for p in gone if not (self._latest[p].finished or self._latest[p].signaled))

    def outlast(self) -> None:
        """Waits until the other workers have done their parts, or are gone; for the process that hosts the store.

        Without the store they could not learn that this process has ended because its own part is done.
        """
        while any(self._is_expected(process) for process in self._processes):
            time.sleep(_POLL_SECONDS)

    def _is_expected(self, process: int) -> bool:
        beat = self._latest.get(process)
        if beat is None or beat.finished or beat.is_gone:
            return False
        return self._seconds - self._heard_at[process] <= self._hang_timeout

    def is_first(self) -> bool:
        """True if this process is the first of all to ask."""
        try:
            return self._signed.add("pipetrain/first", 1) == 1
        except RuntimeError:
            return True  # unknown


def _key(process: int) -> str:
    return f"pipetrain/beat/{process}"
