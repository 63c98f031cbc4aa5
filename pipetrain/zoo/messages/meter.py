"""Measures the messages of a stage: bytes, times of encoding and decoding, and the error of what arrives."""

import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from pipetrain.engine.device_queue import Event, event, queues
from pipetrain.engine.tensors import Tensors
from pipetrain.zoo.messages.base import Direction, MessageTensor

_TINY = 1e-30
_EVENTS_KEPT = 64
"""Pairs of events of a device that are not read yet."""


class Stopwatch:
    """Total time of blocks; of a device's work by events, read once it has passed them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._queues = queues(device)
        self._total = 0.0
        self._began: Any = None  # a time, or an event of a device
        self._events: deque[tuple[Any, Any]] = deque()
        self._reading = threading.Lock()  # reports may be made in another thread

    @contextmanager
    def running(self) -> Iterator[None]:
        """Times the block."""
        self._start()
        yield
        self._stop()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leaves out the block, which is part of one that is timed."""
        self._stop()
        yield
        self._start()

    def _start(self) -> None:
        self._began = event(self._device, timed=True) if self._queues else time.perf_counter()

    def _stop(self) -> None:
        if not self._queues:
            self._total += time.perf_counter() - self._began
            return
        self._events.append((self._began, event(self._device, timed=True)))
        if len(self._events) > _EVENTS_KEPT:
            self._read()

    def _read(self) -> None:
        with self._reading:
            while self._events and self._events[0][1].query():
                began, ended = self._events.popleft()
                self._total += began.elapsed_time(ended) / 1000

    @property
    def seconds(self) -> float:
        """The total of what the device has done."""
        self._read()
        return self._total


class _Sent:
    """What a stage has sent in one direction."""

    def __init__(self) -> None:
        self.minibatches = self.bytes = self.plain_bytes = 0
        self.newest = -1
        self.compared: Tensor | float = 0.0
        self.error: Tensor | float = 0.0
        self.measured_at: Event | None = None


class MessageMeter:
    """Measurements of a stage's messages since the run started or was resumed.

    Args:
        device: of the stage.
        error_every: minibatches between those whose error is measured; None for none.

    Attributes:
        device: of the stage.
        encoding, decoding: the time that these take.
    """

    def __init__(self, device: torch.device, error_every: int | None = None) -> None:
        self.device = device
        self.encoding, self.decoding = Stopwatch(device), Stopwatch(device)
        self._error_every = error_every
        self._sent: defaultdict[Direction, _Sent] = defaultdict(_Sent)

    def compares(self, of: MessageTensor) -> bool:
        """True if the error of a tensor's message is measured."""
        return self._error_every is not None and of.minibatch % self._error_every == 0

    def compare(self, direction: Direction, sent: Tensor, arrives: Tensor) -> None:
        """Takes a tensor, and what arrives of it."""
        sent = sent.float()
        error, norm = torch.linalg.vector_norm(arrives.float() - sent), torch.linalg.vector_norm(sent)
        relative, found = error / norm.clamp_min(_TINY), self._sent[direction]
        finite = relative.isfinite()  # gradients that overflow are not applied
        found.error = found.error + torch.where(finite, relative, 0.0)
        found.compared = found.compared + finite
        found.measured_at = event(self.device) if queues(self.device) else None

    def add(self, direction: Direction, minibatch: int, tensors: Tensors, sent: Tensors) -> None:
        """Takes a message, before and after its encoding."""
        found = self._sent[direction]
        found.minibatches += minibatch > found.newest
        found.newest = max(found.newest, minibatch)
        found.plain_bytes += sum(tensor.nbytes for tensor in tensors)
        found.bytes += sum(tensor.nbytes for tensor in sent)

    def report(self) -> dict[str, Any]:
        """Means over minibatches, for each direction that the stage sends.

        `activations_bytes` and `activations_plain_bytes` of messages with and without the format, the relative error
        `activations_error` of a tensor, `gradients_...` alike, and `encode_s` and `decode_s`. Of times and errors it
        has what the device has done: another thread may call it, which must not wait for the device.
        """
        report: dict[str, Any] = {}
        for direction, found in list(self._sent.items()):
            report[f"{direction}_plain_bytes"] = found.plain_bytes / found.minibatches
            report[f"{direction}_bytes"] = found.bytes / found.minibatches
            if (found.measured_at is None or found.measured_at.query()) and (compared := float(found.compared)):
                report[f"{direction}_error"] = float(found.error) / compared
        count = max((found.minibatches for found in self._sent.values()), default=0)
        if count:
            report |= {"encode_s": self.encoding.seconds / count, "decode_s": self.decoding.seconds / count}
        return report
