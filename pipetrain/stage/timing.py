"""When and how long a stage computes and waits: host time on the CPU, events of the device elsewhere."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from pipetrain.device_queue import event, queues
from pipetrain.program.times import TimeSpan, Wait
from pipetrain.schedules import Operation


class Clock:
    """Collects the computing time of operations; where `traced`, also the time of sending and receiving.

    A device may queue an operation rather than carry it out; events are then recorded around it, and read when asked.
    """

    def __init__(self, device: torch.device) -> None:
        self.traced = False
        self._device = device
        self._queues = queues(device)
        self._spans: list[TimeSpan] = []
        self._waits: list[Wait] = []
        self._origin: tuple[Any, float] | None = None
        self._events: list[tuple[Any, Any]] = []

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Times the block as one operation."""
        if self._queues:
            self._origin = self._origin or _origin(self._device)
            start = event(self._device, timed=True)
            yield
            self._events.append((start, event(self._device, timed=True)))
        else:
            began = time.perf_counter()
            yield
            self._spans.append(TimeSpan(began, time.perf_counter() - began))

    @contextmanager
    def waiting(self, what: str, of: Operation) -> Iterator[None]:
        """Times the block, on the host, as a message's."""
        if not self.traced:
            yield
            return
        began = time.perf_counter()
        yield
        self._waits.append(Wait(what, of, TimeSpan(began, time.perf_counter() - began)))

    def take(self) -> list[TimeSpan]:
        """The computing time of each operation since the last call, in order; waits for the device."""
        if self._origin is not None:
            event, host = self._origin
            self._events[-1][1].synchronize()
            self._spans = [
                TimeSpan(host + event.elapsed_time(start) / 1000, start.elapsed_time(end) / 1000)
                for start, end in self._events
            ]
            self._events, self._origin = [], None
        spans, self._spans = self._spans, []
        return spans

    def take_waits(self) -> list[Wait]:
        """The messages' time since the last call."""
        waits, self._waits = self._waits, []
        return waits


def _origin(device: torch.device) -> tuple[Any, float]:
    """An event of the device, and the host's time when it happened."""
    found = event(device, timed=True)
    found.synchronize()
    return found, time.perf_counter()
