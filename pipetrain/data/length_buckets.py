"""Minibatches of samples of about the same length, so that little of them is padding."""

from collections.abc import Sequence

import torch

from pipetrain.seeding import key


def bucketed(lengths: Sequence[Sequence[int]], batch_size: int, batch_tokens: int | None = None) -> list[list[int]]:
    """The samples of each minibatch, the shortest first; those of the same lengths are mixed.

    Args:
        lengths: positions of each sequence of each sample, such as those of source and target.
        batch_size: samples of a minibatch at most.
        batch_tokens: positions of a minibatch at most, its samples times the longest sequence; a sample that is longer
            has a minibatch of its own. None for any number.
    """
    mixed: list[int] = torch.randperm(len(lengths), generator=torch.Generator().manual_seed(key(0))).tolist()
    batches: list[list[int]] = []
    for index in sorted(mixed, key=lambda i: (max(lengths[i]), *lengths[i])):
        positions = max(lengths[index]) * (len(batches[-1]) + 1) if batches else 0
        full = not batches or len(batches[-1]) == batch_size
        if full or (batch_tokens is not None and positions > batch_tokens):
            batches.append([])
        batches[-1].append(index)
    return batches
