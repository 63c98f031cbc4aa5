"""The minibatches of a drain interval, for the stages that take data."""

from collections import deque
from collections.abc import Iterator

import torch
from torch import Tensor

from pipetrain.engine.data.minibatches import Minibatches
from pipetrain.engine.device_queue import Event, bytes_in_block, event, in_block, page_locked, queues
from pipetrain.engine.program.drain_interval import DrainInterval
from pipetrain.engine.tensors import Tensors

_IN_TURN = 3
"""Minibatches of a feed in page-locked memory: one read ahead, one taken, and one that may yet be copied."""
_LEAST_BYTES = 2**20
"""Page-locked memory of a minibatch, of which most that differ in length have no more."""


class _Ahead:
    """Inputs or targets of minibatches that have been read ahead, in page-locked memory if the device queues.

    The memory is taken at the first minibatch of an interval, before the process sends anything, and used in turn:
    taking it may wait for the whole device. A minibatch without a place there stays in ordinary memory, from which the
    device copies more slowly.

    Args:
        device: that the tensors are for.
        minibatches: of the interval.
        growth: bytes of the largest minibatch divided by bytes of the first.
    """

    def __init__(self, device: torch.device, minibatches: int, growth: int) -> None:
        self._device = device
        self._turns = min(_IN_TURN, minibatches) if queues(device) else 0
        self._growth = growth
        self._waiting: deque[tuple[Tensors, Tensor | None]] = deque()
        self._free: deque[tuple[Tensor, Event | None]] | None = None
        self._taken: Tensor | None = None

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def put(self, tensors: Tensors) -> None:
        """Adds the tensors of the next minibatch."""
        memory = self._memory_for(sum(bytes_in_block(tensor) for tensor in tensors if _is_pageable(tensor)))
        self._waiting.append((tensors if memory is None else _in_memory(tensors, memory), memory))

    def _memory_for(self, size: int) -> Tensor | None:
        """The memory whose turn it is; None if `size` bytes need none, or do not fit."""
        if not self._turns or not size:
            return None
        if self._free is None:
            room = max(_LEAST_BYTES, self._growth * size)
            self._free = deque((memory, None) for memory in page_locked(self._turns * room).split(room))
        if not self._free or self._free[0][0].nbytes < size:
            return None
        memory, copied = self._free.popleft()
        if copied is not None:
            copied.synchronize()
        return memory

    def take(self) -> Tensors:
        """Those of the minibatch that has waited longest; their memory lasts until the next call."""
        if self._taken is not None:
            assert self._free is not None
            self._free.append((self._taken, event(self._device)))
        tensors, self._taken = self._waiting.popleft()
        return tensors


def _is_pageable(tensor: Tensor) -> bool:
    return not (queues(tensor.device) or tensor.is_pinned())


def _in_memory(tensors: Tensors, memory: Tensor) -> Tensors:
    """A minibatch's tensors; tensors in ordinary memory become copies in page-locked memory."""
    copies, start = [*tensors], 0
    for i, tensor in enumerate(tensors):
        if _is_pageable(tensor):
            copies[i] = in_block(tensor, memory, start).copy_(tensor)
            start += bytes_in_block(tensor)
    return tuple(copies)


class Feed:
    """Inputs, targets, or both, of an interval's minibatches in order, on the device of the stage that takes them.

    `every` is the distance from one minibatch to the next: R for a stage with R replicas.
    """

    def __init__(
        self,
        loader: Minibatches,
        interval: DrainInterval,
        device: torch.device,
        *,
        inputs: bool,
        targets: bool,
        every: int = 1,
    ) -> None:
        self._device = device
        minibatches, growth = len(range(interval.first, interval.last, every)), 2 if loader.varying else 1
        self._inputs, self._targets = (_Ahead(device, minibatches, growth) for _ in range(2))
        part = interval.epoch, interval.first, interval.last, every
        self._minibatches: Iterator[tuple[Tensors | None, Tensors | None]] = iter(())
        if inputs and targets:
            self._minibatches = loader.samples(*part)  # reads every sample once
        elif inputs:
            self._minibatches = ((tensors, None) for tensors in loader.inputs(*part))
        elif targets:
            self._minibatches = ((None, tensors) for tensors in loader.targets(*part))

    def prepare(self) -> None:
        """Reads the next minibatch ahead, unless one that was read has not been taken.

        Call it when the stage would wait for another anyway.
        """
        if not self._inputs and not self._targets:
            self._read()

    def inputs(self) -> Tensors:
        """The next minibatch's inputs."""
        return to_device(self._take(self._inputs), self._device)

    def targets(self) -> Tensors:
        """The next minibatch's targets."""
        return to_device(self.host_targets(), self._device)

    def host_targets(self) -> Tensors:
        """The next minibatch's targets in host memory, where looking at them waits for nothing.

        Their memory lasts until the next call.
        """
        return self._take(self._targets)

    def _take(self, ahead: _Ahead) -> Tensors:
        if not ahead:
            self._read()
        return ahead.take()

    def _read(self) -> None:
        inputs, targets = next(self._minibatches, (None, None))
        for tensors, ahead in ((inputs, self._inputs), (targets, self._targets)):
            if tensors is not None:
                ahead.put(tensors)


def to_device(tensors: Tensors, device: torch.device) -> Tensors:
    """The tensors on `device`; copies from page-locked memory of the host do not wait."""
    return tuple(tensor.to(device, non_blocking=True) for tensor in tensors)
