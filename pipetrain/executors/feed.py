"""The minibatches of a drain interval, for the stages that take data."""

from collections import deque
from collections.abc import Iterator

import torch

from pipetrain.data.loader import Loader
from pipetrain.device_queue import queues
from pipetrain.program.drain_interval import DrainInterval
from pipetrain.tensors import Tensors


class Feed:
    """Inputs, targets, or both, of an interval's minibatches in order, on the device of the stage that takes them.

    `every` is the distance from one minibatch to the next: R for a stage with R replicas.
    """

    def __init__(
        self,
        loader: Loader,
        interval: DrainInterval,
        device: torch.device,
        *,
        inputs: bool,
        targets: bool,
        every: int = 1,
    ) -> None:
        self._device = device
        self._inputs: deque[Tensors] = deque()
        self._targets: deque[Tensors] = deque()
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
        """The next minibatch's targets in host memory, where looking at them waits for nothing."""
        return self._take(self._targets)

    def _take(self, waiting: deque[Tensors]) -> Tensors:
        if not waiting:
            self._read()
        return waiting.popleft()

    def _read(self) -> None:
        inputs, targets = next(self._minibatches, (None, None))
        for tensors, waiting in ((inputs, self._inputs), (targets, self._targets)):
            if tensors is not None:
                waiting.append(pinned(tensors, self._device))


def to_device(tensors: Tensors, device: torch.device) -> Tensors:
    """The tensors on `device`; copies from the host do not wait, as they go from page-locked memory."""
    return tuple(tensor.to(device, non_blocking=True) for tensor in pinned(tensors, device))


def pinned(tensors: Tensors, device: torch.device) -> Tensors:
    """The tensors in page-locked memory if they are in the host's and the device queues; else as they are."""
    if not queues(device):
        return tensors
    return tuple(tensor if queues(tensor.device) else tensor.pin_memory() for tensor in tensors)
