"""A link slowed down on purpose, to try on one machine what a slower network does to a pipeline."""

import math
import os
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from pipetrain.errors import ConfigError
from pipetrain.number_range import POSITIVE

_VARIABLE = "PIPETRAIN_LINK_GIGABYTES_PER_S"
_GIGA = 1e9


Transfer = Callable[[], object]
"""Waits for the end of a transfer under way."""


def given_bytes_per_s() -> float | None:
    """The bandwidth that the environment asks for; None: as it is.

    Raises:
        ConfigError: it is no number above 0.
    """
    given = os.environ.get(_VARIABLE)
    if given is None:
        return None
    try:
        gigabytes = float(given)
    except ValueError:
        gigabytes = math.nan
    if gigabytes not in POSITIVE:
        raise ConfigError(f"{_VARIABLE}={given}: {POSITIVE} is needed, such as 0.02; unset, links run at full speed")
    return gigabytes * _GIGA


class SlowLink:
    """Starts transfers one after the other, each when the link would have carried it; the sender never waits.

    Args:
        bytes_per_s: of the link.
    """

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._transfers: queue.SimpleQueue[tuple[Callable[[], Transfer], float, Future[Transfer]]] = queue.SimpleQueue()
        self._free = 0.0
        threading.Thread(target=self._carry, name="slow link", daemon=True).start()

    def send(self, start: Callable[[], Transfer], size: int) -> Transfer:
        """Has `start` start a transfer of `size` bytes once the link has carried them; waiting raises its error."""
        started: Future[Transfer] = Future()
        self._free = max(self._free, time.monotonic()) + size / self._bytes_per_s
        self._transfers.put((start, self._free, started))
        return lambda: started.result()()

    def _carry(self) -> None:
        while True:
            start, due, started = self._transfers.get()
            time.sleep(max(0.0, due - time.monotonic()))
            try:
                started.set_result(start())
            except RuntimeError as error:
                started.set_exception(error)
