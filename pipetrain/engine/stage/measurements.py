"""Staleness, activation bytes, times and peak memory, measured while a stage runs."""

import contextlib
import re
import resource
import sys
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from pipetrain.engine.device_queue import event, queues
from pipetrain.engine.program.times import TimeSpan, Wait
from pipetrain.engine.program.weight_reads import staleness
from pipetrain.engine.schedules import Operation

_EVENTS_KEPT = 64
"""Operations whose events on a device are not read yet; of more, two are read with each further operation."""


class ActivationBytes(NamedTuple):
    """Bytes that a forward keeps for its backward, without weights: of tensors that it made, and of its inputs."""

    made: int = 0
    inputs: int = 0

    def total(self, stored: Iterable[Tensor]) -> int:
        """Total with the inputs stored for a recomputation, which include `inputs`."""
        return self.made + max(self.inputs, sum(tensor.nbytes for tensor in stored))


@dataclass
class Measurements:
    """Staleness and activation memory of a running stage.

    Attributes:
        forward, backward: minibatch under way -> versions that its microbatches have read.
        forward_staleness, backward_staleness: distinct values in the steady state.
        activation_bytes_peak: peak bytes held, including sent messages that may not have arrived.
    """

    forward: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    backward: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    forward_staleness: set[int] = field(default_factory=set)
    backward_staleness: set[int] = field(default_factory=set)
    activation_bytes_peak: int = 0

    def settle(self, minibatch: int, newest: int, *, steady: bool) -> None:
        """Turns versions read into staleness at the update after version `newest`.

        The update applies `minibatch`, and the minibatches before it in the same round of replicas.
        """
        for read, found in ((self.forward, self.forward_staleness), (self.backward, self.backward_staleness)):
            for t in [t for t in read if t <= minibatch]:
                versions = read.pop(t)
                if steady:
                    found.update(staleness(version, newest) for version in versions)


class Clock:
    """Collects the computing time of operations; if `traced`, also the time of sending and receiving.

    Events are recorded around operations that a device queues, and read later.
    """

    def __init__(self, device: torch.device) -> None:
        self.traced = False
        self._device = device
        self._queues = queues(device)
        self._spans: list[TimeSpan] = []
        self._waits: list[Wait] = []
        self._origin: tuple[Any, float] | None = None
        self._events: deque[tuple[Any, Any]] = deque()

    def begin(self) -> None:
        """Waits for the device, to know its time on the host; without this, the first operation does."""
        if self._queues and self._origin is None:
            origin = event(self._device, timed=True)
            origin.synchronize()
            self._origin = origin, time.perf_counter()

    def computing(self) -> AbstractContextManager[None]:
        """Times the block as one operation."""
        return self._on_device() if self._queues else _OnHost(self._spans.append)

    @contextmanager
    def _on_device(self) -> Iterator[None]:
        self.begin()
        start = event(self._device, timed=True)
        yield
        self._events.append((start, event(self._device, timed=True)))
        for _ in range(2):
            if len(self._events) > _EVENTS_KEPT and self._events[0][1].query():
                self._convert(1)

    def waiting(self, what: str, of: Operation) -> AbstractContextManager[None]:
        """Times the block, on the host, as a message's."""
        if not self.traced:
            return nullcontext()
        return _OnHost(lambda span: self._waits.append(Wait(what, of, span)))

    def take(self) -> list[TimeSpan]:
        """The computing time of each operation since the last call, in order; waits for the device."""
        if self._origin is not None:
            if self._events:
                self._events[-1][1].synchronize()
            self._convert(len(self._events))
            self._origin = None
        spans, self._spans = self._spans, []
        return spans

    def _convert(self, count: int) -> None:
        """Makes spans of the first events, which the device has passed."""
        assert self._origin is not None
        event, host = self._origin
        for _ in range(count):
            start, end = self._events.popleft()
            self._spans.append(TimeSpan(host + event.elapsed_time(start) / 1000, start.elapsed_time(end) / 1000))

    def take_waits(self) -> list[Wait]:
        """The messages' time since the last call."""
        waits, self._waits = self._waits, []
        return waits


class _OnHost(AbstractContextManager[None]):
    """Context that passes on the time of its block on the host; a generator would take three times as long."""

    def __init__(self, take: Callable[[TimeSpan], None]) -> None:
        self._take = take

    @override
    def __enter__(self) -> None:
        self._began = time.perf_counter()

    @override
    def __exit__(self, *_error: object) -> None:
        self._take(TimeSpan(self._began, time.perf_counter() - self._began))


_PROCESS = Path("/proc/self")
_FORGET_PEAK = "5"
"""Value for `/proc/self/clear_refs` that resets the peak (proc(5))."""


def reset_peak_memory(device: torch.device) -> None:
    """Resets the peak, since several runs of a sweep may share a process; has no effect for CPUs outside Linux."""
    if device.type == "cuda":
        if torch.cuda.is_initialized():
            torch.cuda.reset_peak_memory_stats(device)
        return
    with contextlib.suppress(OSError):
        (_PROCESS / "clear_refs").write_text(_FORGET_PEAK)


def memory_report(device: torch.device) -> dict[str, Any]:
    """Peak bytes of a stage's tensors; on CUDA also of the allocator and the device.

    The allocator keeps memory for later tensors; a process also has its context and the buffers of NCCL.
    """
    report = {"peak_memory_bytes": peak_memory_bytes(device)}
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        report["peak_reserved_memory_bytes"] = int(torch.cuda.max_memory_reserved(device))
        report["device_memory_bytes"] = int(total - free)
    return report


def peak_memory_bytes(device: torch.device) -> int:
    """Peak bytes of the device's allocator; on the CPU of the whole process."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    with contextlib.suppress(OSError):
        if found := re.search(r"^VmHWM:\s*(\d+) kB$", (_PROCESS / "status").read_text(), re.MULTILINE):
            return int(found[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
