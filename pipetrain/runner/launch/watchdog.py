"""The thread that watches a worker: reads its signals, detects hangs, sends heartbeats, and takes part in drains."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn, Self

from pipetrain.engine.errors import ExitCode
from pipetrain.engine.executors.admission_gate import AdmissionGate
from pipetrain.runner.config.schema import LaunchConfig
from pipetrain.runner.launch import process_exit
from pipetrain.runner.launch.consensus import DrainConsensus, ReportExchange, is_ordered, order_stop
from pipetrain.runner.launch.failure_note import FailureKind, FailureNote
from pipetrain.runner.launch.heartbeat import (
    BEAT_SECONDS,
    Activity,
    Heartbeat,
    SuspendAwareClock,
    birth_and_parent,
    process_namespace,
)
from pipetrain.runner.launch.peer_monitor import PeerMonitor
from pipetrain.runner.launch.signals import ENDING_A_WORKER, WARNING, Interruption, SignalPipe
from pipetrain.runner.launch.stores import Board
from pipetrain.runner.tracking.run_directory import RunDirectory

EXIT_HUNG = 70
"""Exit code of a worker that ends itself because it hangs (EX_SOFTWARE)."""
BLAME_SECONDS = 8.0
"""Seconds that a worker waits after losing a neighbor: the launcher blames the first worker that ends."""

_ORDER_SECONDS = 2.0
"""Seconds that our launcher may take to answer a signal to all processes of the run."""
_POLL_SECONDS = 0.05
_LAST_BEAT_SECONDS = 5.0


class Watchdog:
    """Watches a worker until its process ends; as a context manager, until the context ends.

    A Python signal handler does not run while the main thread waits inside Gloo, so this thread reads the signals and
    ends the process itself.

    Args:
        run: the run directory; None under an outer launcher, until the workers have met.
        limits: seconds that an activity, the start and a graceful stop may take.
        publish: publishes its heartbeats for our launcher without waiting; None under an outer launcher, until the
            workers have met.
        on_signal: called with the signal's number before it ends the process; with 0 if this worker hangs, or another
            was lost.

    Attributes:
        activity: kept up to date by the main thread.
        gate: where the main thread stops for a drain.
        peers: monitors the other workers under an outer launcher.
        interruption: records a signal from an outer launcher that stops the run.
        reports: measurements of the workers, for the last stage to write when the run stops early.
    """

    def __init__(
        self,
        process: int,
        num_processes: int,
        run: RunDirectory | None,
        limits: LaunchConfig,
        publish: Callable[[Heartbeat], None] | None = None,
        on_signal: Callable[[int], None] = lambda _number: None,
    ) -> None:
        self.process = process
        self.run = run
        self.activity = Activity()
        self.publish = publish
        self.gate = AdmissionGate()
        self.gate.waiting = lambda: self.activity.wait("the drain of all processes")
        self.interruption = Interruption()
        self.reports = ReportExchange(process, num_processes)
        self._consensus = DrainConsensus(
            process, num_processes, self.gate, lambda number: self.interruption.note(number)
        )
        self.peers: PeerMonitor | None = None
        self._limits = limits
        self._on_signal = on_signal
        self._has_launcher = publish is not None
        self._deadline: tuple[float, int] | None = None
        self._store: Board | None = None
        self._clock = SuspendAwareClock()
        self._changes = -1
        self._changed_at = 0.0
        self._lost_at: float | None = None
        self._beats, self._next_beat = 0, 0.0
        self._born, _ = birth_and_parent(os.getpid())
        self._last_beat = threading.Event()
        self._closed = threading.Event()
        self._pipe = SignalPipe()
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)

    def start(self) -> None:
        """Starts the thread that watches the worker."""
        self._send_heartbeat()  # a start may take less time than the first heartbeat, and end in a lock held forever
        self._thread.start()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is None:
            self.close()  # else the process ends, watched to its last moment

    def close(self) -> None:
        """Ends the thread and restores the signal handlers."""
        self._closed.set()
        self._pipe.wake()
        self._thread.join()
        self._pipe.close()
        if self.peers is not None:
            self.peers.close()

    def begin(self) -> None:
        """Marks that all is built and connected; published immediately, as a run that trains can be interrupted."""
        self.activity.begin()
        self._pipe.wake()

    def finish(self) -> None:
        """Publishes that this worker has finished."""
        self.activity.finish()
        self._pipe.wake()
        self._last_beat.wait(_LAST_BEAT_SECONDS)

    def meet(self, store: Board, run: RunDirectory) -> None:
        """Sets a connection to the store for this thread alone, and the run directory that all agree on."""
        self.run = run
        self._store = store

    def stop_others(self, seconds: float = 5.0) -> list[Any]:
        """Stops every worker; returns their reports, with None for a worker that sent none within `seconds`."""
        assert self._store is not None, "not met the other workers yet"
        return self.reports.ask(self._store, seconds)

    def _watch(self) -> None:
        # The order of a round matters:
        # 1. Signals wake this thread. They come first, so that the end that they ask for is in this round's requests.
        # 2. A worker that hangs ends here, before a heartbeat makes it look alive.
        # 3. The heartbeat, with which a worker under an outer launcher checks the rest, may end it as well.
        # 4. Drains and reports need the whole run, and wait for nothing: a later round finds what is missing in this
        #    one. The store ends with the process that hosts it, which the launcher handles.
        while not self._closed.is_set():
            holds = self._consensus.holds  # its quick rounds are for the drain alone
            signals = self._pipe.wait(BEAT_SECONDS / 5 if holds else BEAT_SECONDS)
            if self._closed.is_set():
                return
            self._handle_signals(signals)
            self._check_progress()
            if not holds or self._clock.look() >= self._next_beat:
                self._send_heartbeat()
            if self._store is not None:
                with contextlib.suppress(RuntimeError):
                    if self.gate.wanted or is_ordered(self._store):
                        self._consensus.proceed(self._store)
                        self.reports.answer(self._store)

    def _handle_signals(self, signals: bytes) -> None:
        # our launcher, which is warned as well, answers a warning
        numbers = ENDING_A_WORKER if self._has_launcher else (*ENDING_A_WORKER, WARNING)
        ending = next((number for number in numbers if number in signals), None)
        if ending is not None and not (self._has_launcher and self._is_ordered()):
            self.activity.signaled = True
            self._send_heartbeat()
            if not self._begin_graceful_stop(ending):
                self._end_by(ending)
        if self._deadline is not None and self._clock.look() > self._deadline[0]:
            self._end_by(self._deadline[1])

    def _is_ordered(self) -> bool:
        """True if our launcher interrupts the run; it then also ends the workers, if necessary.

        1. A signal to all processes of a run, such as Ctrl-C, reaches the launcher as well. It gives the order, or
           kills the workers, if they do not all train yet or a second signal comes.
        2. A signal to this worker alone is not answered, and ends it.
        """
        until = time.monotonic() + _ORDER_SECONDS
        while not self.gate.ends and time.monotonic() < until:
            with contextlib.suppress(RuntimeError):
                if self._store is not None:
                    self._consensus.share_end(self._store)
            time.sleep(_POLL_SECONDS)
        return self.gate.ends

    def _begin_graceful_stop(self, number: int) -> bool:
        """Begins to drain on a signal from an outer launcher; False if the worker is to end immediately."""
        if self._has_launcher or self.activity.starting or self._store is None:
            return False
        if self._deadline is not None or not self._limits.stop_timeout:
            return False
        if process_exit.orphaned.is_set() or (self.peers is not None and self.peers.failure(str)):
            return False  # no process is left to drain the pipeline with
        self._deadline = self._clock.look() + self._limits.stop_timeout, number
        self.interruption.note(number)
        with contextlib.suppress(RuntimeError):
            order_stop(self._store, number)
        self.gate.end()
        return True

    def lose(self) -> NoReturn:
        """Ends a worker that lost a neighbor, from its main thread, after the failed worker had time to end first."""
        with self.activity.wait("its end"):
            time.sleep(BLAME_SECONDS)
            try:
                if self.peers is not None:
                    self._on_signal(0)
            finally:
                process_exit.exit_now(process_exit.EXIT_LOST)

    def _end_by(self, number: int) -> NoReturn:
        self.interruption.note(number)
        preempted = self.interruption.preempts and not self._has_launcher
        self._end(ExitCode.PREEMPTED if preempted else 128 + number, number)

    def _end(self, code: int, number: int = 0) -> NoReturn:
        try:
            self._on_signal(number)
        finally:  # even if how the run ended cannot be reported, as on a full disk
            process_exit.kill_tree_and_exit(code)

    def _check_progress(self) -> None:
        now, activity = self._clock.look(), self.activity
        if activity.changes != self._changes:
            self._changes, self._changed_at = activity.changes, now
        if activity.starting and not activity.finished:
            # a start may take long, but not forever; a waiting process lets the process it waits for report first
            limit = self._limits.start_timeout
            if now > (2 * limit if activity.waiting else limit):
                self._hang(f"not started after launch.start_timeout={limit:g} s; it was {activity.what}")
        elif not activity.finished and not activity.waiting and now - self._changed_at > self._limits.hang_timeout:
            self._hang(f"{now - self._changed_at:.0f} s in {activity.what}")

    def _hang(self, reason: str) -> None:
        note = FailureNote(FailureKind.HUNG, reason)
        if self.run is None:
            print(f"pipetrain: error: process {self.process} {note.line}", file=sys.stderr, flush=True)
        else:
            note.leave(self.run, self.process)
        self._end(EXIT_HUNG)

    def heartbeat(self) -> Heartbeat:
        """Current heartbeat of this worker."""
        place = os.getpid(), process_namespace()
        return Heartbeat(self.process, *place, self._beats, self._born, replace(self.activity))

    def _send_heartbeat(self) -> None:
        self._beats += 1
        self._next_beat = self._clock.look() + BEAT_SECONDS
        if self.publish is not None:
            beat = self.heartbeat()
            with contextlib.suppress(RuntimeError):  # the store is gone
                self.publish(beat)
            if beat.activity.finished:
                self._last_beat.set()
        # it cannot end a worker of another machine, and a device that waits for another one does not tell its host
        peers = self.peers
        if peers is not None and (peers.unreachable or peers.deadlocked or self._misses_another(peers)):
            self._end(process_exit.EXIT_LOST)

    def _misses_another(self, peers: PeerMonitor) -> bool:
        """True if another worker of this machine ended some time ago, before its part of the run was done."""
        if self.activity.finished or not peers.lost():
            self._lost_at = None
            return False
        now = self._clock.look()
        self._lost_at = now if self._lost_at is None else self._lost_at
        return now - self._lost_at > 2 * BLAME_SECONDS
