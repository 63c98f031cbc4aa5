"""Agreement of all workers through the store on where the pipeline drains, and their reports at an early end."""

import json
import time
from collections.abc import Callable
from typing import Any

from pipetrain.engine.executors.admission_gate import AdmissionGate
from pipetrain.runner.launch.stores import Board, json_value

_NO_SIGNAL = 0
_ORDERED = "pipetrain/ordered"
_STOP = "pipetrain/break-off"
_REPORTS = "pipetrain/stop"


def order_stop(store: Board, number: int = _NO_SIGNAL) -> None:
    """Makes the workers drain the pipeline and end the run, because of a signal if a number is given."""
    _order(store, _STOP, str(int(number)))


def is_ordered(store: Board) -> bool:
    """True if drains or reports were ever asked for: until then, a worker has nothing else to look for."""
    return store.check([_ORDERED])


def _order(store: Board, key: str, value: str) -> None:
    store.set(key, value)
    store.set(_ORDERED, "1")


def _number(entry: bytes) -> int | None:
    """The number in an entry; None if another program has put something else there."""
    try:
        return int(entry)
    except ValueError:
        return None


class DrainConsensus:
    """Agreement of all workers on the minibatch after which the pipeline is drained, to end or to pause.

    The watching thread takes part, as the one that computes may wait for a message:

    1. The worker that wants a drain publishes it.
    2. Each worker holds its gate, and publishes how many minibatches it has begun.
    3. The first worker publishes the largest of these numbers, after which all shut their gates. A gate that is opened
       again is part of the next drain.
    """

    def __init__(
        self, process: int, num_processes: int, gate: AdmissionGate, note: Callable[[int], None] = lambda _number: None
    ) -> None:
        self._process = process
        self._num_processes = num_processes
        self._gate = gate
        self._note = note
        self._held_drain = self._shut_drain = -1

    def proceed(self, store: Board) -> None:
        """Takes the next step, if the other processes are ready for it; must be called regularly."""
        self.share_end(store)
        drain = self._gate.openings  # the number of this drain
        if self._shut_drain == drain:
            return
        requested, agreed = f"pipetrain/drain/{drain}", f"pipetrain/shut/{drain}"
        if self._held_drain != drain and (self._gate.wanted or store.check([requested])):
            self._held_drain = drain
            store.set(f"pipetrain/begun/{drain}/{self._process}", str(self._gate.hold()))
            _order(store, requested, "1")
        if not self.holds:
            return
        if self._process == 0 and (furthest := self._furthest(store, drain)) is not None:
            store.set(agreed, str(furthest))
        if store.check([agreed]) and (count := _number(store.get(agreed))) is not None:
            self._shut_drain = drain
            self._gate.shut(count)

    @property
    def holds(self) -> bool:
        """True while the gate is held, until all shut theirs."""
        return self._held_drain == self._gate.openings != self._shut_drain

    def _furthest(self, store: Board, drain: int) -> int | None:
        """Largest number of minibatches that a worker has begun; None until all have published theirs."""
        keys = [f"pipetrain/begun/{drain}/{process}" for process in range(self._num_processes)]
        counts = [*map(_number, store.multi_get(keys))] if store.check(keys) else [None]
        return None if None in counts else max(count for count in counts if count is not None)

    def share_end(self, store: Board) -> None:
        """Publishes or receives an order to end, even while the pipeline drains for a pause.

        Notes the signal that another process has received, so that all end with one exit code.
        """
        number = _number(store.get(_STOP)) if store.check([_STOP]) else None
        if number is None:
            if self._gate.ends:
                order_stop(store)
        elif not self._gate.ends:
            if number != _NO_SIGNAL:
                self._note(number)
            self._gate.end()


class ReportExchange:
    """Collects the measurements of the workers of a run that stops early; the last stage's worker writes them.

    Attributes:
        own: this worker's report, a value of JSON's.
    """

    def __init__(self, process: int, num_processes: int) -> None:
        self.own: Callable[[], Any] = list
        self._process = process
        self._num_processes = num_processes
        self._answered = False

    def ask(self, store: Board, seconds: float) -> list[Any]:
        """Asks all workers for their reports; None for a worker that sends none within `seconds`."""
        _order(store, _REPORTS, "1")
        self.answer(store)
        deadline = time.monotonic() + seconds
        keys = [_key(process) for process in range(self._num_processes)]
        while time.monotonic() < deadline and not store.check(keys):
            time.sleep(0.05)
        return [json_value(store, key) for key in keys]

    def answer(self, store: Board) -> None:
        """Sends this worker's report once it is requested; must be called regularly."""
        if not self._answered and store.check([_REPORTS]):
            store.set(_key(self._process), json.dumps(self.own()))
            self._answered = True


def _key(process: int) -> str:
    return f"pipetrain/report/{process}"
