"""What the workers of a run that stops early have measured, for the one of the last stage to write."""

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.distributed import Store

_STOP = "pipetrain/stop"


class EndReports:
    """One worker's part: it asks for the reports of all, or is asked for its own.

    Args:
        process, num_processes: which worker this is, and of how many.

    Attributes:
        own: this worker's report, a value of JSON's.
    """

    def __init__(self, process: int, num_processes: int) -> None:
        self.own: Callable[[], Any] = list
        self._process = process
        self._num_processes = num_processes
        self._answered = False

    def ask(self, store: "Store", seconds: float) -> list[Any]:
        """Tells every worker that the run stops; each one's report, None of one that sends none within `seconds`."""
        store.set(_STOP, "1")
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
        """Sends this worker's report once it is asked for; to be called every so often."""
        if not self._answered and store.check([_STOP]):
            self._answered = True
            store.set(_key(self._process), json.dumps(self.own()))


def _key(process: int) -> str:
    return f"pipetrain/report/{process}"
