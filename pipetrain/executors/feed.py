"""The minibatches of a drain interval, for the stages that take data."""

import itertools
from collections import deque
from collections.abc import Iterator

import torch

from pipetrain.data.loader import Loader
from pipetrain.executors.drain_interval import DrainInterval
from pipetrain.tensors import Tensors


class LoaderFeed:
    """An interval's minibatches on the device of the stage that asks for them."""

    def __init__(
        self, loader: Loader, interval: DrainInterval, device: torch.device, inputs: bool, targets: bool
    ) -> None:
        place = interval.epoch, interval.first, interval.last
        self._device = device
        self._sides: list[deque[Tensors]] = [deque(), deque()]
        self._asked = [side for side, asked in enumerate((inputs, targets)) if asked]
        self._minibatches: Iterator[tuple[Tensors, ...]] = iter(())
        if inputs and targets:
            self._minibatches = loader.samples(*place)
        elif inputs or targets:
            self._minibatches = zip(loader.inputs(*place) if inputs else loader.targets(*place))

    def prepare(self) -> None:
        """Reads the next minibatch ahead, if there is one and all that was read has been taken.

        For a moment at which the stage would wait for another anyway.
        """
        if not any(self._sides):
            self._read()

    def inputs(self) -> Tensors:
        """The next minibatch's inputs."""
        return self._take(0)

    def targets(self) -> Tensors:
        """The next minibatch's targets."""
        return self._take(1)

    def _take(self, side: int) -> Tensors:
        if not self._sides[side]:
            self._read()
        return to_device(self._sides[side].popleft(), self._device)

    def _read(self) -> None:
        for minibatch in itertools.islice(self._minibatches, 1):
            for side, tensors in zip(self._asked, minibatch, strict=True):
                self._sides[side].append(tensors)


def to_device(tensors: Tensors, device: torch.device) -> Tensors:
    """The tensors on `device`; copies from the host do not wait."""
    return tuple(tensor.to(device, non_blocking=True) for tensor in tensors)
