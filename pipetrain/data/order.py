"""Orders of samples and minibatches: shuffled, by length, or those that a data set makes itself."""

import operator
from collections.abc import Sequence
from typing import Any

import torch

from pipetrain.data.samples import naming_errors
from pipetrain.engine.errors import ConfigError
from pipetrain.engine.seeding import key


def own_minibatches(dataset: Any, batch_size: int, samples: int) -> list[Sequence[int]]:
    """The minibatches that the `batches` of a data set makes of its first samples.

    Raises:
        ConfigError: they are something else than lists of those samples.
        DataError: it raises an exception.
    """
    asked = f"batches({batch_size}, {samples})"
    with naming_errors(asked):
        minibatches = dataset.batches(batch_size, samples)
    try:
        minibatches = [[operator.index(each) for each in indices] for indices in minibatches if len(indices)]
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
        lengths: positions of each sequence of each sample, such as source and target.
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
