"""How long a stage computes: host time on the CPU, device events on CUDA, nothing of the waiting in between."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Clock:
    """Collects the computing time of operations, in seconds.

    On CUDA an operation is queued rather than carried out, so events are recorded around it and read when asked.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._seconds: list[float] = []
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Times the block as one operation."""
        if self._cuda:
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            yield
            end.record()
            self._events.append((start, end))
        else:
            began = time.perf_counter()
            yield
            self._seconds.append(time.perf_counter() - began)

    def take(self) -> list[float]:
        """The seconds of each operation since the last call, in order; waits for the device."""
        if self._cuda:
            torch.cuda.synchronize()
            self._seconds = [start.elapsed_time(end) / 1000 for start, end in self._events]
            self._events = []
        taken, self._seconds = self._seconds, []
        return taken
