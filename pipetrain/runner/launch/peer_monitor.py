"""The monitor of a run under an outer launcher, such as torchrun: each worker notices if another ends or hangs."""

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Self

from typing_extensions import override

from pipetrain.data.files.json_reader import from_json
from pipetrain.engine.errors import ConfigError, is_whole
from pipetrain.runner.launch import process_exit
from pipetrain.runner.launch.failure_note import FailureKind, FailureNote, named_failure
from pipetrain.runner.launch.heartbeat import BEAT_SECONDS, Heartbeat, SuspendAwareClock, birth_and_parent, key_of
from pipetrain.runner.launch.monitor import Monitor
from pipetrain.runner.launch.stores import Board, SignedStore, json_value
from pipetrain.runner.tracking.run_directory import RunDirectory

_POLL_SECONDS = 0.05
_DIGEST = "pipetrain/digest"


@dataclass(frozen=True)
class _Digest:
    """Findings of the first process in the heartbeats of all workers; only it reads them all.

    Attributes:
        number: number of the first process's heartbeat at that time.
        finished: True if the first process has done its part of the run.
        deadlocked: True if all workers wait for each other.
        silent: workers without a sign of life for `launch.hang_timeout`.
    """

    number: int
    finished: bool = False
    deadlocked: bool = False
    silent: tuple[int, ...] = ()

    def publish(self, store: Board) -> None:
        """Publishes this digest to the other workers."""
        store.set(_DIGEST, json.dumps(asdict(self)))

    @classmethod
    def read(cls, store: Board) -> Self | None:
        """The newest digest; None if there is none, or another program has written the entry."""
        with contextlib.suppress(ConfigError):
            digest: Self = from_json(cls, json_value(store, _DIGEST))
            return digest
        return None


class PeerMonitor(Monitor):
    """Monitors the other workers of a run from one of them, under an outer launcher.

    The first process reads all heartbeats, and publishes a digest. The rest read that, and look after the workers of
    their machine: requests to the store grow with the number of workers, not with its square. A digest that stays the
    same for `launch.hang_timeout` says that the first process is silent.

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
    ) -> None:
        super().__init__(store, run, (p for p in range(num_processes) if p != process), hang_timeout)
        self.deadlocked = False
        self._signed = store
        self._process = process
        self._pause = _POLL_SECONDS * (1 + num_processes // 64)  # so that waiting workers together ask no more often
        self._digest, self._digest_at = _Digest(0), 0.0
        self._store_seconds = self._answered_at = 0.0
        self._closed = threading.Event()

    def meet(self, own: Heartbeat) -> None:
        """Waits for the first heartbeat of every other worker, so that the loss of each is noticed."""
        own.publish(self._store)
        if self._process == 0:
            self._wait_for([key_of(process) for process in self._processes], own)
            self._read(self._processes)
            self._introduce([own, *(seen.beat for seen in self._seen.values())])
            _Digest(own.number).publish(self._store)
        else:
            self._wait_for([_DIGEST], own)
            of_host = json_value(self._store, _host_key(own.host))
            others = of_host if isinstance(of_host, list) else []
            self._processes = [process for process in others if is_whole(process) and process != self._process]
            self._read(self._processes)
        self._digest_at = self._clock.look()
        threading.Thread(target=self._watch_store, name="store timeout", daemon=True).start()

    def exchange(self, own: Heartbeat) -> None:
        """Publishes this worker's heartbeat, and checks the heartbeats of the other workers."""
        own.publish(self._store)
        self._seconds = self._clock.look()
        if self._process == 0:
            self._lead(own)
        else:
            self._follow()
        self._answered_at = self._store_seconds
        if own.activity.finished:
            self.close()

    def _lead(self, own: Heartbeat) -> None:
        """Checks the heartbeats of all, and publishes what it finds."""
        self._read(self._processes)
        self._note(own)
        silent = self._silent()
        if not own.activity.starting and (found := self._deadlock()):  # another limit applies to connecting
            self.deadlocked = True
            FailureNote(FailureKind.HUNG, found[1]).leave(self._run, found[0])
        self._end(silent)
        _Digest(own.number, own.activity.finished, self.deadlocked, tuple(silent)).publish(self._store)

    def _follow(self) -> None:
        """Acts on the digest of the first process, unless another program has written it."""
        digest = _Digest.read(self._store)
        if digest is None or digest.number != self._digest.number:
            self._digest_at = self._seconds
        if digest is not None and digest.number >= self._digest.number:
            self._digest = digest
        self.deadlocked |= self._digest.deadlocked
        others = (process for process in self._digest.silent if process != self._process)
        self._end((process for process in others if not self._is_gone(process)), is_noted=True)
        is_late = self._seconds - self._digest_at > self._hang_timeout
        if is_late and not (self._digest.finished or self._is_gone(0)):
            self._end([0])

    def _wait_for(self, keys: list[str], own: Heartbeat) -> None:
        """Waits for entries of the other workers; a blocking request would keep the watching thread from the store."""
        published_at = time.monotonic()
        while not self._store.check(keys):
            time.sleep(self._pause)
            if time.monotonic() - published_at > BEAT_SECONDS:  # another program may have overwritten it
                published_at = time.monotonic()
                own.publish(self._store)

    def _introduce(self, beats: Iterable[Heartbeat]) -> None:
        """Publishes which workers are on one machine."""
        hosts: dict[str, list[int]] = {}
        for beat in beats:
            hosts.setdefault(beat.host, []).append(beat.process)
        for host, processes in hosts.items():
            self._store.set(_host_key(host), json.dumps(processes))

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
        # only what the same launcher has started: other programs may reach the store
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
        gone = [process for process in [*self._seen] if self._is_gone(process) and self._is_missed(process)]
        if gone:
            with contextlib.suppress(RuntimeError):  # the store may be gone as well
                self._read(gone)  # their last heartbeats
        return sorted(filter(self._is_missed, gone))

    def _is_gone(self, process: int) -> bool:
        return process in self._seen and self._seen[process].beat.is_gone

    def _is_missed(self, process: int) -> bool:
        activity = self._seen[process].beat.activity
        return not (activity.finished or activity.signaled)

    def outlast(self) -> None:
        """Waits until the other workers have finished or are gone; for the process that hosts the store.

        Without the store they could not learn that this process has finished.
        """
        while any(each is not None and each <= self._hang_timeout for each in map(self._silence, self._processes)):
            time.sleep(_POLL_SECONDS)

    def is_first(self) -> bool:
        """True if this process is the first of all to ask."""
        try:
            return self._signed.add("pipetrain/first", 1) == 1
        except RuntimeError:
            return True  # unknown


def _host_key(host: str) -> str:
    return f"pipetrain/workers/{host}"
