"""The monitor of a run's workers: reads their heartbeats from the store, and ends or reports silent workers.

Our launcher monitors the workers that it started (`LauncherMonitor`). Under an outer launcher, such as torchrun, each
worker monitors the others (`PeerMonitor`).
"""

import contextlib
import os
import signal
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Self

from typing_extensions import override

from pipetrain.engine.errors import RunError
from pipetrain.engine.failure import described
from pipetrain.runner.launch import fork_server, process_exit
from pipetrain.runner.launch.consensus import order_stop
from pipetrain.runner.launch.failure_note import FailureKind, FailureNote, named_failure
from pipetrain.runner.launch.heartbeat import (
    BEAT_SECONDS,
    Heartbeat,
    SuspendAwareClock,
    birth_and_parent,
    key_of,
)
from pipetrain.runner.launch.stores import Board, SignedStore
from pipetrain.runner.tracking.run_directory import RunDirectory
from pipetrain.runner.training.job import Job

_ENDING_SECONDS = 10.0
"""Seconds that a worker may take to end once the run is complete."""
_POLL_SECONDS = 0.05


class UnreportedWorkerFailure(Exception):  # noqa: N818  (it is the worker that failed)
    """A worker failed in a way that its exit code does not show; the message is such as `hung: 8 s in F3.0`."""

    def __init__(self, process: int, how: str) -> None:
        super().__init__(how)
        self.process = process


@dataclass(frozen=True)
class _Seen:
    """The newest heartbeat of a worker; when it came, and when the activity in it was new, in seconds."""

    beat: Heartbeat
    heard_at: float
    changed_at: float


class Monitor(ABC):
    """Reads the workers' heartbeats, and ends a worker that sends none for `launch.hang_timeout`.

    A heartbeat that has disappeared, cannot be read, is older than the last or of another process counts neither as
    life nor as silence: another program writes in the store.

    Args:
        store: where the workers meet; a connection that no other thread waits on.
        run: the run directory.
        processes: numbers of the workers to monitor.
        hang_timeout: seconds.
        look: returns the seconds of a clock that stands still while this process is stopped.

    Attributes:
        unreachable: True if a silent worker cannot be ended by this process.
    """

    def __init__(
        self,
        store: Board,
        run: RunDirectory,
        processes: Iterable[int],
        hang_timeout: float,
        look: Callable[[], float] | None = None,
    ) -> None:
        self.unreachable = False
        self._store = store
        self._run = run
        self._processes = [*processes]
        self._hang_timeout = hang_timeout
        self._look_at_clock = look or SuspendAwareClock().look
        self._seconds = 0.0
        self._seen: dict[int, _Seen] = {}
        self._ended: set[int] = set()

    def look(self) -> None:
        """Reads all heartbeats, and ends silent workers; must be called about every `BEAT_SECONDS`."""
        self._seconds = self._look_at_clock()
        self._read()
        for process in self._processes:
            seen = self._seen.get(process)
            if seen is None or self._seconds - seen.heard_at <= self._hang_timeout:
                continue
            if seen.beat.activity.finished or process in self._ended or seen.beat.is_gone:
                continue
            # a process that is stopped, or never releases the interpreter's lock, cannot end itself
            self._ended.add(process)
            FailureNote(FailureKind.HUNG, f"no sign of life for {self._hang_timeout:.0f} s").leave(self._run, process)
            if not self._kill(seen.beat):
                self.unreachable = True

    @abstractmethod
    def _kill(self, beat: Heartbeat) -> bool:
        """Kills a worker; False if this process must not, or cannot."""

    def _read(self) -> None:
        for process in self._processes:
            beat, seen = Heartbeat.read(self._store, process), self._seen.get(process)
            if seen is not None and (beat is None or beat.number < seen.beat.number or beat.pid != seen.beat.pid):
                self._seen[process] = replace(seen, heard_at=self._seconds)
            elif beat is not None:
                self._note(beat)

    def _note(self, beat: Heartbeat) -> None:
        now, seen = self._seconds, self._seen.get(beat.process)
        heard_at = seen.heard_at if seen and seen.beat.number == beat.number else now
        is_same = seen and seen.beat.activity.changes == beat.activity.changes
        self._seen[beat.process] = _Seen(beat, heard_at, seen.changed_at if seen and is_same else now)

    def _deadlock(self) -> tuple[int, str] | None:
        """The first worker, and what all wait for; None unless all wait and nothing has changed for long.

        If all wait for each other, no worker is to blame, and none would report it.
        """
        active = [seen for _, seen in sorted(self._seen.items()) if not seen.beat.activity.finished]
        if not active or not self._seen.keys() >= {*self._processes} or not all(map(self._is_stuck, active)):
            return None
        first, *rest = (seen.beat for seen in active)
        others = "; ".join(f"process {beat.process} in {beat.activity.what}" for beat in rest)
        where = f"{first.activity.what}, and every other stage waits as well: {others}" if rest else first.activity.what
        return first.process, f"{self._hang_timeout:.0f} s in {where}"

    def _is_stuck(self, seen: _Seen) -> bool:
        is_heard = self._seconds - seen.heard_at < 4 * BEAT_SECONDS
        return seen.beat.activity.waiting and is_heard and self._seconds - seen.changed_at > self._hang_timeout


class LauncherMonitor(Monitor):
    """Monitors the workers of a job from the process that started them, as a context manager around their lives.

    A worker's own watchdog reports what its main thread does. It cannot report that the whole process is stopped,
    holds the interpreter's lock or never began, or that all workers wait for each other.

    Args:
        job: of the workers.
        store: where they leave their heartbeats.
        kill: kills a worker by its number, not by the PID in its heartbeat.
        look: as of `Monitor`.
    """

    def __init__(
        self, job: Job, store: Board, kill: Callable[[int], None], look: Callable[[], float] | None = None
    ) -> None:
        self._limits = job.settings.launch
        self._kill_worker = kill
        super().__init__(store, job.run, range(job.placement.num_processes), self._limits.hang_timeout, look)
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
        """Orders the workers to finish the minibatches in flight and save a checkpoint.

        Returns:
            False, and nothing happens, if a worker does not train yet.
        """
        self._read()
        if any(seen is None or seen.beat.activity.starting for seen in map(self._seen.get, self._processes)):
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
        """Checks a worker that has ended with exit code 0.

        Raises:
            UnreportedWorkerFailure: the worker had not finished its part of the run.
        """
        self._read()
        seen = self._seen.get(process)
        if seen is None or not seen.beat.activity.finished:
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
            if process not in self._seen and self._seconds > limit:
                self._report(process, f"did not start within launch.start_timeout={limit:g} seconds")

    def _check_deadlock(self) -> None:
        if found := self._deadlock():
            self._report(found[0], f"hung: {found[1]}")

    def _check_end(self) -> None:
        """Ends the processes of a complete run that do not end, such as one that is stopped or waits for a thread."""
        found = [seen.beat for seen in map(self._seen.get, self._processes) if seen is not None]
        beats = [beat for beat in found if beat.activity.finished]
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
        self,
        process: int,
        num_processes: int,
        store: SignedStore,
        run: RunDirectory,
        hang_timeout: float,
        look: Callable[[], float] | None = None,
    ) -> None:
        super().__init__(store, run, (p for p in range(num_processes) if p != process), hang_timeout, look)
        self.deadlocked = False
        self._signed = store
        self._process = process
        self._store_seconds = self._answered_at = 0.0
        self._closed = threading.Event()

    def meet(self, own: Heartbeat) -> None:
        """Waits for the first heartbeat of every other worker, so that the loss of each is noticed."""
        keys, published_at = [key_of(p) for p in self._processes], time.monotonic()
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
        if not own.activity.starting and (found := self._deadlock()):  # another limit applies to connecting
            self.deadlocked = True
            FailureNote(FailureKind.HUNG, found[1]).leave(self._run, found[0])
        self._answered_at = self._store_seconds
        if own.activity.finished:
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
        gone = [process for process, seen in [*self._seen.items()] if seen.beat.is_gone]
        if not gone:
            return []
        with contextlib.suppress(RuntimeError):  # the store may be gone as well
            self._read()  # their last heartbeats
        last = {process: self._seen[process].beat.activity for process in gone}
        return sorted(process for process, activity in last.items() if not (activity.finished or activity.signaled))

    def outlast(self) -> None:
        """Waits until the other workers have finished or are gone; for the process that hosts the store.

        Without the store they could not learn that this process has finished.
        """
        while any(self._is_expected(process) for process in self._processes):
            time.sleep(_POLL_SECONDS)

    def _is_expected(self, process: int) -> bool:
        seen = self._seen.get(process)
        if seen is None or seen.beat.activity.finished or seen.beat.is_gone:
            return False
        return self._seconds - seen.heard_at <= self._hang_timeout

    def is_first(self) -> bool:
        """True if this process is the first of all to ask."""
        try:
            return self._signed.add("pipetrain/first", 1) == 1
        except RuntimeError:
            return True  # unknown
