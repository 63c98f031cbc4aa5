"""What the launcher sees of its workers: whether each has started, works on, and ends when it is done."""

import contextlib
import multiprocessing
import os
import signal
import threading
from typing import Self

from pipetrain.errors import RunError
from pipetrain.failure import described
from pipetrain.launch import fork_server
from pipetrain.launch.failure_note import FailureKind, FailureNote
from pipetrain.launch.heartbeat import BEAT_SECONDS, Heartbeat
from pipetrain.launch.lines import WorkerLines
from pipetrain.launch.roll_call import RollCall, is_gone
from pipetrain.run.job import Job

_EXIT_SECONDS = 2.0
"""How long torch's launcher gets to report an exit code; it reports none of 0."""
_ENDING_SECONDS = 10.0
"""How long a worker whose run is complete may take to end."""


class WorkerMissing(Exception):  # noqa: N818  (it is the worker that failed)
    """A worker fails in a way that torch's launcher does not see; says which process and how."""

    def __init__(self, process: int, how: str) -> None:
        super().__init__(how)
        self.process = process


class Overseer:
    """Watches the workers of a job from the process that starts them, as a context manager around their lives.

    A worker's own watchdog tells what its main thread does. It cannot tell that the whole process is stopped, holds
    the interpreter's lock, never began, or has left without a word.

    Attributes:
        lines: the workers' ends of the pipes; writing a heartbeat never waits.
    """

    def __init__(self, job: Job) -> None:
        self._run = job.run
        self._limits = job.settings.launch
        self._processes = range(job.placement.num_processes)
        self._received, heartbeats = multiprocessing.Pipe(duplex=False)
        order, self._order = multiprocessing.Pipe(duplex=False)
        os.set_blocking(heartbeats.fileno(), False)
        self.lines = WorkerLines(heartbeats, order)
        self._calls = RollCall()
        self._gone: dict[int, float] = {}
        self._ended: set[int] = set()
        self._complete: float | None = None
        self._missing: WorkerMissing | None = None
        self._failed: Exception | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="overseer", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._closed.set()
        self._thread.join()
        for end in (self._received, self._order, self.lines.heartbeats, self.lines.order):
            end.close()

    def break_off(self) -> bool:
        """Has the workers finish the minibatches on their way and save a checkpoint; whether they all train by now."""
        beats = [self._calls.last(process) for process in self._processes]
        if any(beat is None or beat.starting for beat in beats):
            return False
        self._order.close()
        return True

    def check(self) -> None:
        """To be called while torch's launcher finds nothing wrong.

        Raises:
            WorkerMissing: something is.
            RunError: nobody looks at the workers any more, which could hang unseen.
        """
        if self._missing is not None:
            raise self._missing
        if self._failed is not None:
            raise RunError(f"the thread that watches the workers failed: {described(self._failed)}") from self._failed

    def _watch(self) -> None:
        try:
            while not self._closed.is_set():
                self._look()
        except Exception as error:
            self._failed = error

    def _look(self) -> None:
        self._listen()
        fork_server.go_on()
        self._calls.look()
        for process in self._processes:
            self._judge(process)
        self._look_for_deadlock()
        self._look_at_the_end()

    def _listen(self) -> None:
        seconds = BEAT_SECONDS
        while self._received.poll(seconds):
            self._calls.hear(Heartbeat.decoded(self._received.recv_bytes()))
            seconds = 0.0

    def _judge(self, process: int) -> None:
        beat = self._calls.last(process)
        if beat is None:
            if self._calls.seconds > self._limits.start_timeout:
                self._miss(process, f"did not start within launch.start_timeout={self._limits.start_timeout:g} seconds")
        elif beat.finished:
            pass  # it may be stopped, for all that the run needs of it
        elif is_gone(beat):
            since = self._gone.setdefault(process, self._calls.seconds)
            if self._calls.seconds - since > _EXIT_SECONDS:
                self._miss(process, "failed: it ended with exit code 0 before the run did")
        elif self._calls.silence(process) > self._limits.hang_timeout:
            self._end(beat, f"no sign of life for {self._limits.hang_timeout:.0f} s")

    def _look_for_deadlock(self) -> None:
        """All wait, and nothing has happened for long: nobody is to blame, and nobody would ever say so."""
        beats = [beat for beat in map(self._calls.last, self._processes) if beat is None or not beat.finished]
        stuck = [beat for beat in beats if beat is not None and self._waits_for_ever(beat)]
        if stuck and len(stuck) == len(beats):
            others = "; ".join(f"process {beat.process} in {beat.what}" for beat in stuck[1:])
            where = f"{stuck[0].what}, and every other stage waits as well: {others}" if others else stuck[0].what
            self._miss(stuck[0].process, f"hung: {self._limits.hang_timeout:.0f} s in {where}")

    def _waits_for_ever(self, beat: Heartbeat) -> bool:
        calls, alive = self._calls, 4 * BEAT_SECONDS
        too_long = calls.idleness(beat.process) > self._limits.hang_timeout
        return beat.waiting and too_long and calls.silence(beat.process) < alive

    def _look_at_the_end(self) -> None:
        """Ends what stays of a run that is complete, such as a process that is stopped or waits for a thread."""
        beats = [self._calls.last(process) for process in self._processes]
        if not all(beat is not None and beat.finished for beat in beats):
            return
        if self._complete is None:
            self._complete = self._calls.seconds
        if self._calls.seconds - self._complete > _ENDING_SECONDS:
            for beat in beats:
                if beat is not None and not is_gone(beat):
                    self._kill(beat)

    def _miss(self, process: int, how: str) -> None:
        self._missing = self._missing or WorkerMissing(process, how)

    def _end(self, beat: Heartbeat, why: str) -> None:
        if beat.process not in self._ended:
            self._ended.add(beat.process)
            FailureNote(FailureKind.HUNG, why).leave(self._run, beat.process)
            self._kill(beat)

    def _kill(self, beat: Heartbeat) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(beat.pid, signal.SIGKILL)
