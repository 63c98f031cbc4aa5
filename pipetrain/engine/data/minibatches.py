"""Minibatches as executors read them, from a loader or from any iterable, and cut them into microbatches."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence, Sized
from itertools import islice
from typing import Any, Protocol

import torch
from torch import Tensor

from pipetrain.engine.errors import ConfigError, DataError
from pipetrain.engine.tensors import Tensors


class Minibatches(Protocol):
    """Minibatches of some epochs. Each is inputs and targets, tuples of tensors with a row for each sample."""

    @property
    def varying(self) -> bool:
        """True if minibatches of equally many samples may differ in shape otherwise."""

    def __len__(self) -> int:
        """Number of minibatches of an epoch."""

    def sizes(self, epoch: int) -> Sequence[int]:
        """Number of samples of each minibatch."""

    def minibatches(self, epoch: int) -> Sequence[Sequence[int]]:
        """Ids of the samples of each minibatch; raises a ConfigError if they have none."""

    def finish(self, inputs: Tensors) -> Tensors:
        """The inputs that layers take, computed from those of a minibatch, on their device."""

    def without_workers(self) -> "Minibatches":
        """The same minibatches, read in the caller's own process, as pays for a single one."""

    def inputs(self, epoch: int, first: int = 0, last: int | None = None, every: int = 1) -> Iterator[Tensors]:
        """The inputs of minibatches first to last - 1 of `epoch`, each `every`-th."""

    def targets(self, epoch: int, first: int = 0, last: int | None = None, every: int = 1) -> Iterator[Tensors]:
        """The targets of minibatches first to last - 1 of `epoch`, each `every`-th."""

    def samples(
        self, epoch: int, first: int = 0, last: int | None = None, every: int = 1
    ) -> Iterator[tuple[Tensors, Tensors]]:
        """Inputs and targets of minibatches first to last - 1 of `epoch`, each `every`-th."""


class OnePass:
    """The minibatches that an iterable such as a DataLoader yields, in one pass over it.

    Their sizes are not known before they are read, so each may differ in shape from those before it.

    Args:
        pairs: (inputs, targets), each a tensor or a tuple or list of tensors. Without a length, they are read at once.
    """

    varying = True

    def __init__(self, pairs: Iterable[Any]) -> None:
        pairs = pairs if isinstance(pairs, Sized) else list(pairs)
        self._length = len(pairs)
        self._reading = map(_pair, pairs)
        self._waiting: list[tuple[int, deque[Tensors]]] = []
        """Sides that are read, inputs (0) or targets (1), and those of minibatches that only the other has taken."""

    def __len__(self) -> int:
        return self._length

    def sizes(self, epoch: int) -> Sequence[int]:  # noqa: ARG002
        """Zeros, as they are unknown."""
        return [0] * self._length

    def minibatches(self, epoch: int) -> Sequence[Sequence[int]]:  # noqa: ARG002
        """Raises a ConfigError: the samples have no ids."""
        raise ConfigError("a format of messages needs the ids of samples, which the minibatches of an iterable lack")

    def finish(self, inputs: Tensors) -> Tensors:
        """The inputs as they are."""
        return inputs

    def without_workers(self) -> "OnePass":
        """Itself: the iterable says who reads."""
        return self

    def samples(
        self, epoch: int, first: int = 0, last: int | None = None, every: int = 1
    ) -> Iterator[tuple[Tensors, Tensors]]:
        """Inputs and targets of the minibatches in this range.

        Raises:
            DataError: an item is no pair of tensors.
        """
        part = epoch, first, last, every
        return zip(self.inputs(*part), self.targets(*part), strict=True)

    def inputs(self, epoch: int, first: int = 0, last: int | None = None, every: int = 1) -> Iterator[Tensors]:  # noqa: ARG002
        """The inputs alone; raises as `samples`."""
        return islice(self._side(0), first, last, every)

    def targets(self, epoch: int, first: int = 0, last: int | None = None, every: int = 1) -> Iterator[Tensors]:  # noqa: ARG002
        """The targets alone; raises as `samples`."""
        return islice(self._side(1), first, last, every)

    def _side(self, side: int) -> Iterator[Tensors]:
        waiting = deque[Tensors]()
        self._waiting.append((side, waiting))  # now, before another side is read

        def read() -> Iterator[Tensors]:
            while waiting or self._read_one():
                yield waiting.popleft()

        return read()

    def _read_one(self) -> bool:
        for pair in self._reading:
            for side, waiting in self._waiting:
                waiting.append(pair[side])
            return True
        return False


def _pair(item: Any) -> tuple[Tensors, Tensors]:
    sides = tuple(item) if isinstance(item, tuple | list) else ()
    inputs, targets = ((side,) if isinstance(side, Tensor) else side for side in sides) if len(sides) == 2 else ((), ())
    for side in (inputs, targets):
        if not (isinstance(side, tuple | list) and side and all(isinstance(each, Tensor) for each in side)):
            raise DataError(
                f"a minibatch is a {type(item).__name__}; it must be a pair (inputs, targets), each a tensor or a "
                "tuple of tensors"
            )
    return tuple(inputs), tuple(targets)


def split(tensors: Tensors, num_microbatches: int) -> list[Tensors]:
    """The microbatches of a minibatch, as views: every tensor cut along dimension 0 by `torch.tensor_split`.

    The first ones are a sample larger where `num_microbatches` does not divide the minibatch.
    """
    # the data of a view has a version of its own: a layer may change one microbatch in place while the rest are needed
    parts = ([part.data for part in torch.tensor_split(tensor, num_microbatches)] for tensor in tensors)
    return list(zip(*parts, strict=True))


def microbatch_sizes(samples: int, num_microbatches: int) -> list[int]:
    """Number of samples of each microbatch that `split` makes of a minibatch."""
    size, larger = divmod(samples, num_microbatches)
    return [size + (index < larger) for index in range(num_microbatches)]
