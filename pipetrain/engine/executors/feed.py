"""The minibatches of a drain interval, for the stages that take data."""

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from pipetrain.engine.data.minibatches import Minibatches
from pipetrain.engine.device_queue import Event, SideStream, event, page_locked, queues
from pipetrain.engine.program.drain_interval import DrainInterval
from pipetrain.engine.tensors import Tensors, bytes_of, dense

_BLOCKS, _BLOCK_BYTES = 8, 2**22
"""Number and size of the blocks of page-locked memory that copies pass through."""


class Uploads:
    """Copies tensors from host memory to a device, in a stream that does not wait for the computation.

    They pass through blocks of page-locked memory, in turn, whatever their size. A block is filled again once the
    device has copied it: for this the host waits, for no other work of the device. For the CPU nothing is copied.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = SideStream(device)
        self._blocks: deque[tuple[Tensor, Event | None]] = deque()

    def lock(self) -> None:
        """Takes the blocks if it has not yet; `page_locked` says when that is safe."""
        if not self._blocks and queues(self.device):
            self._blocks.extend((block, None) for block in page_locked(_BLOCKS * _BLOCK_BYTES).split(_BLOCK_BYTES))

    def start(self, tensors: Tensors) -> Tensors:
        """The tensors on the device, where they are complete after `hand_over`."""
        return tuple(self._copy(tensor) if tensor.device != self.device else tensor for tensor in tensors)

    def hand_over(self, tensors: Tensors) -> Tensors:
        """Has the computation wait until the device has copied these tensors, and returns them."""
        self._stream.hand_over(tensors)
        return tensors

    def _copy(self, tensor: Tensor) -> Tensor:
        if queues(tensor.device) or not queues(self.device):
            return tensor.to(self.device)
        with self._stream.entered():
            if tensor.is_pinned():
                return tensor.to(self.device, non_blocking=True)
            tensor = dense(tensor)
            copy = torch.empty_like(tensor, device=self.device)
            for source, target in zip(_parts(tensor), _parts(copy), strict=True):
                self._copy_part(source, target)
            return copy

    def _copy_part(self, source: Tensor, target: Tensor) -> None:
        self.lock()
        block, copied = self._blocks.popleft()
        if copied is not None:
            copied.synchronize()
        target.copy_(block[: source.numel()].copy_(source), non_blocking=True)
        self._blocks.append((block, event(self.device)))


def _parts(tensor: Tensor) -> tuple[Tensor, ...]:
    """A dense tensor's memory, as bytes, in parts that fit into a block."""
    return bytes_of(tensor).split(_BLOCK_BYTES) if tensor.numel() else ()


class Targets(NamedTuple):
    """The targets of a minibatch, on the device and in host memory, where they can be read without waiting."""

    on_host: Tensors
    on_device: Tensors


class Feed:
    """Inputs, targets, or both, of an interval's minibatches in order, on the device of the stages that take them.

    `every` is the distance from one minibatch to the next: R for a stage with R replicas.
    """

    def __init__(
        self,
        loader: Minibatches,
        interval: DrainInterval,
        uploads: Uploads,
        *,
        inputs: bool,
        targets: bool,
        every: int = 1,
    ) -> None:
        self._uploads = uploads
        self._finish = loader.finish
        self._inputs: deque[Tensors] = deque()
        self._targets: deque[Targets] = deque()
        self._ahead: deque[Tensors] | deque[Targets] = self._inputs if inputs else self._targets
        part = interval.epoch, interval.first, interval.last, every
        self._minibatches: Iterator[tuple[Tensors | None, Tensors | None]] = iter(())
        if inputs and targets:
            self._minibatches = loader.samples(*part)  # reads every sample once
        elif inputs:
            self._minibatches = ((tensors, None) for tensors in loader.inputs(*part))
        elif targets:
            self._minibatches = ((None, tensors) for tensors in loader.targets(*part))

    def prepare(self) -> None:
        """Reads the next minibatch ahead, unless one that was read has not been taken: its inputs, if these are read.

        Call it when the stage would wait for another anyway.
        """
        if not self._ahead:
            self._read()

    def inputs(self) -> Tensors:
        """The next minibatch's inputs."""
        if not self._inputs:
            self._read()
        return self._finish(self._uploads.hand_over(self._inputs.popleft()))

    def targets(self) -> Targets:
        """The next minibatch's targets."""
        if not self._targets:
            self._read()
        targets = self._targets.popleft()
        self._uploads.hand_over(targets.on_device)
        return targets

    def _read(self) -> None:
        inputs, targets = next(self._minibatches, (None, None))
        if inputs is not None:
            self._inputs.append(self._uploads.start(inputs))
        if targets is not None:
            self._targets.append(Targets(targets, self._uploads.start(targets)))
