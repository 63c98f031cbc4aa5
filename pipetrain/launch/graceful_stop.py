"""The graceful stop of a run: a signal lets it finish the minibatches on their way and save a checkpoint."""

import contextlib
import json
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

from pipetrain.executors.admission_gate import AdmissionGate
from pipetrain.launch.signals import Interruption, handled_by
from pipetrain.libraries.processes import ENDING

if TYPE_CHECKING:
    from torch.distributed import Store


_STOPPING = tuple(number for number in ENDING if number != signal.SIGQUIT)  # which is for those in a hurry
_NO_SIGNAL = 0

_STOP = "pipetrain/break-off"
_REPORTS = "pipetrain/stop"


@contextlib.contextmanager
def drain_on_signal(stop: Callable[[], bool], seconds: float, interruption: Interruption) -> Iterator[None]:
    """Around training in this process, or in those that it has started.

    Args:
        stop: called for the first signal; returns True if the run will end on its own, with its checkpoint.
        seconds: how long that may take; what then ends the run is the signal once more. 0: signals end it immediately.
        interruption: takes note of every signal, so that one which a run survives still ends its sweep.
    """
    if threading.current_thread() is not threading.main_thread() or not seconds:
        yield  # only the main thread has handlers
        return

    def handle(number: int, frame: FrameType | None) -> None:
        interruption.note(number)
        if patience.is_tried or not stop():
            interruption.handle(number, frame)
        patience.try_with(number)
        _announce(seconds)

    with contextlib.closing(_GracePeriod(seconds)) as patience, handled_by(handle, _STOPPING):
        yield


class _GracePeriod:
    """Sends this process a signal once more when it has run out.

    It is tried from a signal's handler, which may have interrupted anything: the thread is there before, and what
    wakes it takes no lock.

    Attributes:
        is_tried: True if the seconds run.
    """

    def __init__(self, seconds: float) -> None:
        self.is_tried = False
        self._seconds = seconds
        self._tried, self._try = os.pipe()
        self._thread = threading.Thread(target=self._wait, name="patience", daemon=True)
        self._thread.start()

    def try_with(self, number: int) -> None:
        """Starts the seconds, after which the signal is sent."""
        self.is_tried = True
        os.write(self._try, bytes([number]))

    def close(self) -> None:
        """Sends nothing any more."""
        os.write(self._try, bytes([_NO_SIGNAL]))
        self._thread.join()
        os.close(self._tried)
        os.close(self._try)

    def _wait(self) -> None:
        (number,) = os.read(self._tried, 1)
        closed = number == _NO_SIGNAL or select.select([self._tried], [], [], self._seconds)[0]
        if not closed:
            os.kill(os.getpid(), number)


def _announce(seconds: float) -> None:
    # not by print: the signal may have come in the middle of one
    line = (
        f"\ninterrupted: the steps on their way are finished and saved, for up to launch.stop_timeout={seconds:g} s; "
        "once more ends the run at once\n"
    )
    with contextlib.suppress(OSError):
        os.write(1, line.encode())


def order_stop(store: "Store") -> None:
    """Makes the workers drain the pipeline and end the run."""
    store.set(_STOP, "1")


class DrainConsensus:
    """Agreement of all workers on the minibatch after which the pipeline is drained, to end or to pause.

    The watching thread takes part, as the one that computes may wait for a message:

    1. The worker that wants a drain publishes it.
    2. Each worker holds its gate, and publishes how many minibatches it has begun.
    3. All shut their gates after the largest of these numbers. A gate that is opened again begins another round.

    Args:
        process, num_processes: number of this worker, and of all.
        gate: this worker's gate.
    """

    def __init__(self, process: int, num_processes: int, gate: AdmissionGate) -> None:
        self._process = process
        self._num_processes = num_processes
        self._gate = gate
        self._round = 0
        self._told = False
        self._agreed = False

    def ask(self) -> None:
        """Asks for a drain that ends the run."""
        self._gate.end()

    def proceed(self, store: "Store") -> None:
        """Takes the next step, if the other processes are ready for it; to be called regularly."""
        if self._round != self._gate.openings:
            self._round, self._told, self._agreed = self._gate.openings, False, False
        self.share_end(store)
        if self._agreed:
            return
        asked = f"pipetrain/drain/{self._round}"
        if not self._told and (self._gate.wanted or store.check([asked])):
            self._told = True
            store.set(self._begun(self._process), str(self._gate.hold()))
            store.set(asked, "1")
        keys = [self._begun(p) for p in range(self._num_processes)]
        if self._told and store.check(keys):
            self._agreed = True
            self._gate.shut(max(int(store.get(key)) for key in keys))

    def share_end(self, store: "Store") -> None:
        """Publishes or receives an order to end, even while the pipeline drains for a pause."""
        if self._gate.ends:
            order_stop(store)
        elif store.check([_STOP]):
            self._gate.end()

    def _begun(self, process: int) -> str:
        return f"pipetrain/begun/{self._round}/{process}"


class ReportExchange:
    """Collects what the workers of a run that stops early have measured; the last stage's worker writes it.

    Args:
        process, num_processes: number of this worker, and of all.

    Attributes:
        own: this worker's report, a value of JSON's.
    """

    def __init__(self, process: int, num_processes: int) -> None:
        self.own: Callable[[], Any] = list
        self._process = process
        self._num_processes = num_processes
        self._answered = False

    def ask(self, store: "Store", seconds: float) -> list[Any]:
        """Asks all workers for their reports; None for a worker that sends none within `seconds`."""
        store.set(_REPORTS, "1")
        deadline = time.monotonic() + seconds
        others = [p for p in range(self._num_processes) if p != self._process]
        while time.monotonic() < deadline and others and not store.check([_key(p) for p in others]):
            time.sleep(0.05)
        reports: list[Any] = [None] * self._num_processes
        reports[self._process] = self.own()
        for p in others:
            if store.check([_key(p)]):
                reports[p] = json.loads(store.get(_key(p)))
        return reports

    def answer(self, store: "Store") -> None:
        """Sends this worker's report once it is asked for; to be called regularly."""
        if not self._answered and store.check([_REPORTS]):
            self._answered = True
            store.set(_key(self._process), json.dumps(self.own()))


def _key(process: int) -> str:
    return f"pipetrain/report/{process}"
