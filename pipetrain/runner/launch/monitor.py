"""The monitor of a run's workers: reads their heartbeats from the store, and ends or reports silent workers.

Our launcher monitors the workers that it started (`LauncherMonitor`). Under an outer launcher, such as torchrun, each
worker monitors the rest (`PeerMonitor`): the first reads the heartbeats of all, and the rest its digest of them.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Self

from typing_extensions import override

from pipetrain.engine.errors import RunError
from pipetrain.engine.failure import described
from pipetrain.runner.launch import fork_server
from pipetrain.runner.launch.consensus import order_stop
from pipetrain.runner.launch.failure_note import FailureKind, FailureNote
from pipetrain.runner.launch.heartbeat import BEAT_SECONDS, Heartbeat, SuspendAwareClock
from pipetrain.runner.launch.stores import Board
from pipetrain.runner.tracking.run_directory import RunDirectory
from pipetrain.runner.training.job import Job

_ENDING_SECONDS = 10.0
"""Seconds that a worker may take to end once the run is complete."""


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
    life nor as silence: another program writes in the store. No other thread waits on the connection to the store.

    Attributes:
        unreachable: True if a silent worker cannot be ended by this process.
    """

    def __init__(self, store: Board, run: RunDirectory, processes: Iterable[int], hang_timeout: float) -> None:
        self.unreachable = False
        self._store = store
        self._run = run
        self._processes = [*processes]
        self._hang_timeout = hang_timeout
        self._clock = SuspendAwareClock()
        self._seconds = 0.0
        self._seen: dict[int, _Seen] = {}
        self._ended: set[int] = set()

    def look(self) -> None:
        """Reads all heartbeats, and ends silent workers; must be called about every `BEAT_SECONDS`."""
        self._seconds = self._clock.look()
        self._read(self._processes)
        self._end(self._silent())

    def _silent(self) -> list[int]:
        return [process for process in self._processes if (self._silence(process) or 0.0) > self._hang_timeout]

    def _silence(self, process: int) -> float | None:
        """Seconds since a worker was heard of; None if it has not begun, has finished, or is gone."""
        seen = self._seen.get(process)
        if seen is None or seen.beat.activity.finished or seen.beat.is_gone:
            return None
        return self._seconds - seen.heard_at

    def _end(self, processes: Iterable[int], *, is_noted: bool = False) -> None:
        """Ends silent workers: one that is stopped, or never releases the interpreter's lock, cannot end itself.

        Leaves a note of each, unless another process has left it.
        """
        for process in processes:
            if process in self._ended:
                continue
            self._ended.add(process)
            if not is_noted:
                reason = f"no sign of life for {self._hang_timeout:.0f} s"
                FailureNote(FailureKind.HUNG, reason).leave(self._run, process)
            seen = self._seen.get(process)
            if seen is None or not self._kill(seen.beat):
                self.unreachable = True

    @abstractmethod
    def _kill(self, beat: Heartbeat) -> bool:
        """Kills a worker; False if this process must not, or cannot."""

    def _read(self, processes: Collection[int]) -> None:
        beats = Heartbeat.read(self._store, processes)
        for process in processes:
            beat, seen = beats.get(process), self._seen.get(process)
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
    holds the interpreter's lock or never began, or that all workers wait for each other. It kills a worker by its
    number, not by the PID in its heartbeat.
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
        """Orders the workers to finish what is in flight and save; False, and no order, if one does not train yet."""
        self._read(self._processes)
        if any(seen is None or seen.beat.activity.starting for seen in map(self._seen.get, self._processes)):
            return False
        order_stop(self._store)
        return True

    def check(self) -> None:
        """Raises the UnreportedWorkerFailure that the monitor has found, or a RunError if it failed itself."""
        if isinstance(self._failure, UnreportedWorkerFailure):
            raise self._failure
        if self._failure is not None:
            text = f"the thread that monitors the workers failed: {described(self._failure)}"
            raise RunError(text) from self._failure

    def check_finished(self, process: int) -> None:
        """Raises an UnreportedWorkerFailure if a worker ended with exit code 0 before its part of the run was done."""
        self._read([process])
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
                if found := self._deadlock():
                    self._report(found[0], f"hung: {found[1]}")
                self._check_end()
        except Exception as error:
            self._failure = self._failure or error

    def _check_starts(self) -> None:
        limit = self._limits.start_timeout
        for process in self._processes:
            if process not in self._seen and self._seconds > limit:
                self._report(process, f"did not start within launch.start_timeout={limit:g} seconds")

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
