"""Streams and events: queues of operations, each with a thread of its own."""

from __future__ import annotations

# ruff: noqa: FBT001, FBT002 (functions stand for torch's, with its arguments)
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from support.fake_gpu.host_waits import Awaited, blocked, failed, failures, host_wait, line, posted, waits

_PRIVATE_USE_1 = 20  # of c10::DeviceType
_here = threading.local()


class Lane:
    """A queue whose items a thread carries out, one after the other."""

    def __init__(self) -> None:
        self._items: queue.SimpleQueue[Callable[[], Any]] = queue.SimpleQueue()
        self._issued = self.completed = 0
        self.changed = threading.Condition()
        # a daemon, as the process must be able to end while an operation spins
        threading.Thread(target=self._work, daemon=True).start()

    def put(self, item: Callable[[], Any]) -> Point:
        with self.changed:
            self._items.put(item)
            self._issued += 1
            return Point(self, self._issued)

    def mark(self) -> Point:
        """The end of all that has been put there."""
        with self.changed:
            return Point(self, self._issued)

    def _work(self) -> None:
        with torch.inference_mode():
            while True:
                item = self._items.get()
                try:
                    if not failures:
                        item()
                except BaseException as error:
                    failed(error)
                del item  # with all that it holds, before anybody hears that it is complete
                with self.changed:
                    self.completed += 1
                    self.changed.notify_all()


@dataclass(frozen=True)
class Point:
    """A place in a lane."""

    lane: Lane
    number: int

    def reached(self) -> bool:
        return self.lane.completed >= self.number

    def wait(self, timeout: float | None = None) -> bool:
        with self.lane.changed:
            return self.lane.changed.wait_for(self.reached, timeout)


class Stream(torch.Stream):
    """A stream, as of torch.cuda."""

    all: dict[int, Stream] = {}  # noqa: RUF012 (an attribute of all, by number)
    lane: Lane

    def __new__(cls, _device: Any = None, _priority: int = 0) -> Stream:
        number = len(cls.all)
        self = super().__new__(cls, stream_id=number, device_index=0, device_type=_PRIVATE_USE_1)  # type: ignore[call-overload]
        self.lane = Lane()
        cls.all[number] = self
        return self

    def put(self, item: Callable[[], Any]) -> Point:
        return self.lane.put(item)

    def mark(self) -> Point:
        return self.lane.mark()

    def wait_point(self, point: Awaited) -> None:
        """What is put here from now on waits for it; the host does not."""
        self.put(lambda: point.wait(None))

    def synchronize(self) -> None:
        host_wait(self.mark(), "stream", "Stream.synchronize")

    def query(self) -> bool:
        return self.mark().reached()

    def wait_stream(self, stream: Stream) -> None:
        self.wait_point(stream.mark())

    def wait_event(self, event: Event) -> None:
        event.wait(self)

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event


class Event:
    """An event, as of torch.cuda; its time is that when its stream reaches it."""

    def __init__(self, enable_timing: bool = False, **_options: Any) -> None:
        self._timed, self._point, self._time = enable_timing, None, [0.0]

    def record(self, stream: Stream | None = None) -> None:
        moment = self._time = [0.0]
        self._point = (stream or current_stream()).put(lambda: moment.__setitem__(0, time.perf_counter()))

    def query(self) -> bool:
        return self._point is None or self._point.reached()

    def synchronize(self) -> None:
        if self._point is not None:
            host_wait(self._point, "event", "Event.synchronize")

    def wait(self, stream: Stream | None = None) -> None:
        if self._point is not None:
            (stream or current_stream()).wait_point(self._point)

    def elapsed_time(self, end: Event) -> float:
        for each in (self, end):
            if not each._timed or each._point is None or not each.query():
                raise RuntimeError("both events must have been made with enable_timing, recorded and reached")
        return 1000 * (end._time[0] - self._time[0])


def current_stream(_device: Any = None) -> Stream:
    return getattr(_here, "stream", None) or Stream.all[0]


def set_stream(stream: Stream) -> None:
    _here.stream = stream


@contextmanager
def entered(stream: Stream | None) -> Iterator[None]:
    before = current_stream()
    set_stream(stream or before)
    try:
        yield
    finally:
        set_stream(before)


def device_wide_wait(*_device: Any) -> None:
    """Waits for the whole device, as cudaDeviceSynchronize, cudaFree and the loading of a kernel do."""
    waits["device", line()] += 1
    for stream in [*Stream.all.values()]:
        blocked(stream.mark(), "a wait for the whole device, behind a stream")
    for what, end in [*posted.values()]:
        blocked(end, f"a wait for the whole device, behind {what}")
