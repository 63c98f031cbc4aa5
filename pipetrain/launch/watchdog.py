"""The thread that watches a worker: signals while it waits, hangs of its own and of others, orders to stop."""

import contextlib
import json
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Self

from torch.distributed import Store

from pipetrain.errors import one_line
from pipetrain.tracking.run_directory import RunDirectory

EXIT_LOST = 75
"""Exit code of a worker that lost a neighbor (EX_TEMPFAIL)."""
EXIT_HUNG = 70
"""Exit code of a worker that ends itself because it hangs (EX_SOFTWARE)."""
BLAME_SECONDS = 8.0
"""How long a worker that lost a neighbor waits before it ends: the launcher names whoever ends first."""

_ENDING = (signal.SIGTERM, signal.SIGINT)
"""Signals that end a worker; others are the library's or the user's own, such as SIGCHLD of a data set's workers."""
_POLL_SECONDS = 0.5
_STOP = "pipetrain/stop"


@dataclass
class Activity:
    """What a worker's main thread does, and since when."""

    what: str = "starting"
    since: float = field(default_factory=time.monotonic)
    waiting: bool = False

    def now(self, what: str) -> None:
        """The main thread starts something else."""
        self.what, self.since = what, time.monotonic()

    @contextlib.contextmanager
    def wait(self, what: str) -> Iterator[None]:
        """Around a wait for another process: whoever waits does not hang, the one waited for may."""
        before = self.what
        self.what, self.since, self.waiting = f"{before}, waiting for {what}", time.monotonic(), True
        try:
            yield
        finally:
            self.what, self.since, self.waiting = before, time.monotonic(), False

    @contextlib.contextmanager
    def compute(self, what: str) -> Iterator[None]:
        """Around a computation inside such a wait: a library waits and computes in one call."""
        before = self.what, self.waiting
        self.what, self.since, self.waiting = what, time.monotonic(), False
        try:
            yield
        finally:
            self.since = time.monotonic()
            self.what, self.waiting = before


def leave_failure_note(run: RunDirectory, process: int, text: str, traceback: str = "") -> None:
    """Tells the launcher why a process failed: in the first line of a file, which holds the traceback as well."""
    run.logs.mkdir(parents=True, exist_ok=True)
    run.failure_note(process).write_text(f"{one_line(text)}\n{traceback}", encoding="utf-8")


@dataclass(frozen=True)
class Watched:
    """A worker that is watched.

    Attributes:
        process, num_processes: its number, and how many there are.
        run: the run directory.
        hang_timeout: seconds.
    """

    process: int
    num_processes: int
    run: RunDirectory
    hang_timeout: float


class Watchdog:
    """Watches a worker, as a context manager, from when it has joined the process group until it leaves the group.

    A Python signal handler does not run while the main thread waits inside Gloo, so this thread reads signals from a
    wake-up pipe and ends the process itself.

    Args:
        watched: the worker.
        activity: kept up to date by the main thread.
        store: a connection of this thread's own.
        on_signal: called before a signal ends the process.

    Attributes:
        report: what this worker has measured, for that of the last stage to write when the run stops early.
    """

    def __init__(
        self,
        watched: Watched,
        activity: Activity,
        store: Store,
        on_signal: Callable[[], None] = lambda: None,
    ) -> None:
        self._process = watched.process
        self._num_processes = watched.num_processes
        self._run = watched.run
        self._hang_timeout = watched.hang_timeout
        self._activity = activity
        self._store = store
        self._on_signal = on_signal
        self.report: Callable[[], Any] = list
        self._seen: dict[int, tuple[str, float]] = {}
        self._reported = False
        self._closed = threading.Event()
        self._wakeup, self._wakeup_write = os.pipe()
        os.set_blocking(self._wakeup_write, False)
        self._handlers = {n: signal.signal(n, lambda *_: None) for n in _ENDING}
        signal.set_wakeup_fd(self._wakeup_write, warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is None:
            self.close()  # else the process ends, watched to its last moment

    def close(self) -> None:
        """Ends the thread and restores the signal handlers."""
        self._closed.set()
        os.write(self._wakeup_write, bytes(1))
        self._thread.join()
        signal.set_wakeup_fd(-1)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        os.close(self._wakeup)
        os.close(self._wakeup_write)

    def stop_others(self, seconds: float = 5.0) -> list[Any]:
        """Tells every worker that the run stops.

        Returns:
            Each worker's report; None for one that sent none within `seconds`.
        """
        self._store.set(_STOP, "1")
        deadline = time.monotonic() + seconds
        keys = [_report_key(p) for p in range(self._num_processes) if p != self._process]
        while time.monotonic() < deadline and keys and not self._store.check(keys):
            time.sleep(0.05)
        reports: list[Any] = [None] * self._num_processes
        reports[self._process] = self.report()
        for p in range(self._num_processes):
            if p != self._process and self._store.check([_report_key(p)]):
                reports[p] = json.loads(self._store.get(_report_key(p)))
        return reports

    def _watch(self) -> None:
        beat = 0
        while not self._closed.is_set():
            signals = self._signals(_POLL_SECONDS)
            if self._closed.is_set():
                return
            if ending := next((number for number in _ENDING if number in signals), None):
                self._on_signal()
                os._exit(128 + ending)
            beat += 1
            self._look_at_self()
            # the store ends with the process that hosts it, and the launcher deals with that
            with contextlib.suppress(RuntimeError):
                self._store.set(_beat_key(self._process), json.dumps([beat, os.getpid(), socket.gethostname()]))
                self._look_at_others()
                if not self._reported and self._store.check([_STOP]):
                    self._reported = True
                    self._store.set(_report_key(self._process), json.dumps(self.report()))

    def _signals(self, seconds: float) -> bytes:
        """The numbers of the signals that came, after waiting for one: Python writes each that has a handler."""
        ready = select.select([self._wakeup], [], [], seconds)[0]
        return os.read(self._wakeup, 4096) if ready else b""

    def _look_at_self(self) -> None:
        stuck = time.monotonic() - self._activity.since
        if not self._activity.waiting and stuck > self._hang_timeout:
            leave_failure_note(self._run, self._process, f"hung: {stuck:.0f} s in {self._activity.what}")
            os._exit(EXIT_HUNG)

    def _look_at_others(self) -> None:
        """Ends a worker without a heartbeat: one that is stopped, or never releases the interpreter, cannot do so."""
        for p in range(self._num_processes):
            if p == self._process or not self._store.check([_beat_key(p)]):
                continue
            beat = self._store.get(_beat_key(p)).decode()
            before, since = self._seen.get(p, ("", time.monotonic()))
            if beat != before:
                self._seen[p] = beat, time.monotonic()
            elif time.monotonic() - since > self._hang_timeout:
                leave_failure_note(self._run, p, f"hung: no sign of life for {self._hang_timeout:.0f} s")
                _, pid, host = json.loads(beat)
                if host == socket.gethostname():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                else:
                    os._exit(EXIT_LOST)


def _beat_key(process: int) -> str:
    return f"pipetrain/beat/{process}"


def _report_key(process: int) -> str:
    return f"pipetrain/report/{process}"
