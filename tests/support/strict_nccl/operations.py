"""Operations of a communicator: queued, late, and with memory and thread blocks of their own until they end."""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from support import fake_gpu
from support.fake_gpu import Lane, blocked, current_stream, give_up, is_fake, line, on_host, posted, setting
from torch import Tensor

_numbers = itertools.count()
_draw = random.Random(os.getpid())


class _ThreadBlocks:
    """Those that operations have taken, now and at most."""

    def __init__(self) -> None:
        self.taken = self.most = 0
        self._lock = threading.Lock()

    def take(self, count: int) -> None:
        with self._lock:
            self.taken += count
            self.most = max(self.most, self.taken)
            if self.taken > (limit := int(setting("PIPETRAIN_EMULATED_SMS", 132))):
                give_up(f"operations of NCCL's occupy {self.taken} thread blocks of {limit} multiprocessors")

    def free(self, count: int) -> None:
        with self._lock:
            self.taken -= count


thread_blocks = _ThreadBlocks()


class Operation(dist.Work):
    """One operation of a communicator."""

    def __init__(self, what: str, lane: Lane, ctas: int, memory: Sequence[Tensor], carry: Callable[[], None]) -> None:
        super().__init__()
        self._what, self._on_device = what, any(is_fake(each) for each in memory)
        self._held: list[Tensor] = [*memory]
        begins, number = current_stream().mark(), next(_numbers)

        def run() -> None:
            begins.wait()
            thread_blocks.take(ctas)
            late()
            carry()
            thread_blocks.free(ctas)
            posted.pop(number, None)
            self._held.clear()

        with lane.changed:  # so that the operation cannot be complete before it is posted
            self._end = lane.put(run)
            posted[number] = f"{what} at {line()}", self._end

    def is_completed(self) -> bool:
        return self._end.reached()

    def is_success(self) -> bool:
        return self.is_completed()

    def wait(self, _timeout: Any = None) -> bool:
        if self._on_device:
            current_stream().wait_point(self._end)
        else:
            fake_gpu.host_wait(self._end, "nccl", self._what)
        self._held.clear()
        return True


class AwaitedOnHost(Operation):
    """A barrier."""

    def wait(self, _timeout: Any = None) -> bool:
        super().wait()
        blocked(current_stream().mark(), self._what)
        return True


def late() -> None:
    """Passes a while."""
    time.sleep(_draw.random() * setting("STRICT_NCCL_LATE_MS", 3) / 1000)


class SentMemory:
    """Memory that nobody may change until it is sent."""

    def __init__(self, memory: Tensor, what: str) -> None:
        self._memory, self._before, self._what = memory, memory.clone(), what

    def read(self) -> bytes:
        if not torch.equal(self._memory, self._before):
            give_up(f"the memory of a {self._what} has changed before it was sent")
        return self._memory.numpy().tobytes()


def write(memory: Tensor, found: bytes) -> None:
    """Puts received bytes in their place."""
    if found:
        memory.copy_(torch.frombuffer(bytearray(found), dtype=torch.uint8))


def bytes_of(tensor: Tensor) -> Tensor:
    """Its memory, as the host sees it."""
    if not tensor.is_contiguous():
        raise ValueError("Tensors must be contiguous")
    return on_host(tensor).detach().reshape(-1).view(torch.uint8)
