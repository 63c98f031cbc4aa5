"""The minibatches of a drain interval, for the stages that take data."""

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import torch

from pipetrain.data.loader import Loader
from pipetrain.program.drain_interval import DrainInterval
from pipetrain.tensors import Tensors


class Feed:
    """An interval's inputs and targets in order, on the device of the stage that asks for them.

    Args:
        loader: what reads them.
        interval: which minibatches.
        device: where the stage computes.
        inputs, targets: whether the stage takes them.
        every: of so many minibatches one, the first one first; a replica's are its own.
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
        part = _Part(interval.epoch, interval.first, interval.last, every)
        self._minibatches = _minibatches(loader, part, inputs=inputs, targets=targets)

    def prepare(self) -> None:
        """Reads the next minibatch ahead, if there is one and all that was read has been taken.

        Call it when the stage would wait for another anyway.
        """
        if not self._inputs and not self._targets:
            self._read()

    def inputs(self) -> Tensors:
        """The next minibatch's inputs."""
        return self._take(self._inputs)

    def targets(self) -> Tensors:
        """The next minibatch's targets."""
        return self._take(self._targets)

    def _take(self, waiting: deque[Tensors]) -> Tensors:
        if not waiting:
            self._read()
        return to_device(waiting.popleft(), self._device)

    def _read(self) -> None:
        inputs, targets = next(self._minibatches, (None, None))
        if inputs is not None:
            self._inputs.append(inputs)
        if targets is not None:
            self._targets.append(targets)


class _Part(NamedTuple):
    """Which minibatches of an epoch are read: arguments of a loader."""

    epoch: int
    first: int
    last: int
    every: int


def _minibatches(
    loader: Loader, part: _Part, *, inputs: bool, targets: bool
) -> Iterator[tuple[Tensors | None, Tensors | None]]:
    """Inputs and targets of each minibatch; None for those that are not taken."""
    if inputs and targets:
        return loader.samples(*part)  # reads every sample once
    if inputs:
        return ((tensors, None) for tensors in loader.inputs(*part))
    if targets:
        return ((None, tensors) for tensors in loader.targets(*part))
    return iter(())


def to_device(tensors: Tensors, device: torch.device) -> Tensors:
    """The tensors on `device`; copies from the host do not wait."""
    return tuple(tensor.to(device, non_blocking=True) for tensor in tensors)
