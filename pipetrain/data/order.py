"""The samples of each minibatch of an epoch."""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from typing_extensions import override

from pipetrain.data.samples import naming_errors
from pipetrain.errors import ConfigError
from pipetrain.seeding import key


class EpochOrder(Protocol):
    """The minibatches of an epoch, equally many in each.

    Attributes:
        dropped: samples that no minibatch of an epoch holds.
    """

    dropped: int

    def __len__(self) -> int: ...

    def minibatches(self, epoch: int) -> list[Sequence[int]]:
        """The samples of each minibatch, in the order in which they are read."""
        ...

    def sizes(self, epoch: int) -> list[int]:
        """The samples of each minibatch."""
        ...


class FixedSizeBatches(EpochOrder):
    """Samples in order, or shuffled by (seed, epoch), cut into minibatches of one size; the last may be smaller.

    Args:
        samples: how many there are.
        batch_size: samples of a minibatch.
        least: a last minibatch of fewer samples is dropped.
        seed: of the shuffle; None for the data set's own order.
    """

    def __init__(self, samples: int, batch_size: int, least: int, seed: int | None) -> None:
        whole, rest = divmod(samples, batch_size)
        last = [rest] if rest >= max(1, least) else []
        self._sizes = [batch_size] * whole + last
        self._samples = samples
        self._batch_size = batch_size
        self._seed = seed
        self.dropped = rest - sum(last)

    @override
    def __len__(self) -> int:
        return len(self._sizes)

    @override
    def minibatches(self, epoch: int) -> list[Sequence[int]]:
        order = range(self._samples) if self._seed is None else _shuffled(self._samples, self._seed, epoch)
        starts = range(0, len(self) * self._batch_size, self._batch_size)
        return [order[start : start + self._batch_size] for start in starts]

    @override
    def sizes(self, epoch: int) -> list[int]:
        return self._sizes


class DatasetBatches(EpochOrder):
    """The minibatches that a data set makes of its samples itself; their order is shuffled by (seed, epoch).

    Args:
        minibatches: the samples of each.
        samples: those that could be in one.
        least: minibatches of fewer samples are dropped.
        seed: of the shuffle; None for the data set's own order.
    """

    def __init__(self, minibatches: Sequence[Sequence[int]], samples: int, least: int, seed: int | None) -> None:
        self._minibatches = [indices for indices in minibatches if len(indices) >= max(1, least)]
        self._seed = seed
        self._newest: tuple[int, list[Sequence[int]]] | None = None
        self.dropped = samples - sum(map(len, self._minibatches))

    @override
    def __len__(self) -> int:
        return len(self._minibatches)

    @override
    def minibatches(self, epoch: int) -> list[Sequence[int]]:
        if self._seed is None:
            return self._minibatches
        if self._newest is None or self._newest[0] != epoch:
            order = _shuffled(len(self), self._seed, epoch)
            self._newest = epoch, [self._minibatches[index] for index in order]
        return self._newest[1]

    @override
    def sizes(self, epoch: int) -> list[int]:
        return list(map(len, self.minibatches(epoch)))


def order_of(dataset: Any, samples: int, batch_size: int, least: int, seed: int | None) -> EpochOrder:
    """The order of the first `samples` samples of a data set: its own `batches`, where it has them.

    Raises:
        ConfigError: `batches` returns something else than lists of those samples.
        DataError: it raises an exception.
    """
    if not hasattr(dataset, "batches"):
        return FixedSizeBatches(samples, batch_size, least, seed)
    asked = f"batches({batch_size}, {samples})"
    with naming_errors(asked):
        minibatches = dataset.batches(batch_size, samples)
    try:
        outside = [index for indices in minibatches for index in indices if not 0 <= index < samples]
        order = DatasetBatches(minibatches, samples, least, seed)
    except TypeError as error:
        raise ConfigError(f"dataset: {asked} must return lists of samples, such as [[0, 1], [2]]: {error}") from error
    if outside:
        raise ConfigError(f"dataset: {asked} returned the sample {outside[0]}; samples are 0 to {samples - 1}")
    return order


def _shuffled(count: int, seed: int, epoch: int) -> list[int]:
    generator = torch.Generator().manual_seed(key(seed, epoch))
    order: list[int] = torch.randperm(count, generator=generator).tolist()
    return order


def length_buckets(
    lengths: Sequence[Sequence[int]], batch_size: int, batch_tokens: int | None = None
) -> list[list[int]]:
    """The samples of each minibatch, the shortest first; samples of the same lengths are shuffled.

    Args:
        lengths: positions of each sequence of each sample, such as those of source and target.
        batch_size: samples of a minibatch at most.
        batch_tokens: positions of a minibatch at most, its samples times the longest sequence; a sample that is longer
            has its own minibatch. None for any number.
    """
    shuffled: list[int] = torch.randperm(len(lengths), generator=torch.Generator().manual_seed(key(0))).tolist()
    batches: list[list[int]] = []
    for index in sorted(shuffled, key=lambda i: (max(lengths[i]), *lengths[i])):
        positions = max(lengths[index]) * (len(batches[-1]) + 1) if batches else 0
        full = not batches or len(batches[-1]) == batch_size
        if full or (batch_tokens is not None and positions > batch_tokens):
            batches.append([])
        batches[-1].append(index)
    return batches
