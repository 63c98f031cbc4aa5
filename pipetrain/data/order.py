"""The samples of each minibatch of an epoch."""

from collections.abc import Sequence
from typing import Any

import torch

from pipetrain.data.samples import naming_errors
from pipetrain.errors import ConfigError
from pipetrain.seeding import key


class EpochOrder:
    """The minibatches of the first `samples` samples of a data set, equally many in every epoch.

    Samples are shuffled by (seed, epoch) and cut into minibatches of `batch_size`; the last may be smaller. If the
    data set has `batches`, these are the minibatches, and their order is shuffled instead. Minibatches of fewer than
    `least` samples are dropped. Without a seed, nothing is shuffled.

    Attributes:
        dropped: number of samples that are in no minibatch.

    Raises:
        ConfigError: `batches` returns something else than lists of those samples.
        DataError: it raises an exception.
    """

    def __init__(self, dataset: Any, samples: int, batch_size: int, least: int, seed: int | None) -> None:
        self._whole = hasattr(dataset, "batches")
        starts = range(0, samples, batch_size)
        cut = [range(start, min(start + batch_size, samples)) for start in starts]
        minibatches = _own_minibatches(dataset, batch_size, samples) if self._whole else cut
        self._minibatches = [indices for indices in minibatches if len(indices) >= max(1, least)]
        self._sizes = list(map(len, self._minibatches))
        self._samples = samples
        self._shuffle_seed = seed
        self._newest: tuple[int, list[Sequence[int]]] | None = None
        self.dropped = samples - sum(self._sizes)

    def __len__(self) -> int:
        """Number of minibatches of an epoch."""
        return len(self._minibatches)

    def minibatches(self, epoch: int) -> list[Sequence[int]]:
        """The samples of each minibatch, in the order in which they are read."""
        if self._shuffle_seed is None:
            return self._minibatches
        if self._newest is None or self._newest[0] != epoch:
            order = shuffled(len(self) if self._whole else self._samples, self._shuffle_seed, epoch)
            if self._whole:
                minibatches = [self._minibatches[index] for index in order]
            else:
                minibatches = [order[part[0] : part[-1] + 1] for part in self._minibatches]
            self._newest = epoch, minibatches
        return self._newest[1]

    def sizes(self, epoch: int) -> list[int]:
        """Number of samples of each minibatch."""
        return list(map(len, self.minibatches(epoch))) if self._whole else self._sizes


def _own_minibatches(dataset: Any, batch_size: int, samples: int) -> list[Sequence[int]]:
    asked = f"batches({batch_size}, {samples})"
    with naming_errors(asked):
        minibatches = dataset.batches(batch_size, samples)
    try:
        minibatches = [indices for indices in minibatches if len(indices)]
        outside = [index for indices in minibatches for index in indices if not 0 <= index < samples]
    except TypeError as error:
        raise ConfigError(f"dataset: {asked} must return lists of samples, such as [[0, 1], [2]]: {error}") from error
    if outside:
        raise ConfigError(f"dataset: {asked} returned the sample {outside[0]}; samples are 0 to {samples - 1}")
    return minibatches


def shuffled(count: int, *seed: int) -> list[int]:
    """The numbers from 0 to `count` - 1 in a random order, the same for the same seed."""
    order: list[int] = torch.randperm(count, generator=torch.Generator().manual_seed(key(*seed))).tolist()
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
    batches: list[list[int]] = []
    for index in sorted(shuffled(len(lengths), 0), key=lambda i: (max(lengths[i]), *lengths[i])):
        positions = max(lengths[index]) * (len(batches[-1]) + 1) if batches else 0
        full = not batches or len(batches[-1]) == batch_size
        if full or (batch_tokens is not None and positions > batch_tokens):
            batches.append([])
        batches[-1].append(index)
    return batches
