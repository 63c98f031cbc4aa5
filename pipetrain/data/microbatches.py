"""Cutting a minibatch into microbatches."""

import torch

from pipetrain.tensors import Tensors


def split(tensors: Tensors, num_microbatches: int) -> list[Tensors]:
    """The microbatches of a minibatch, as views: every tensor cut along dimension 0 by `torch.tensor_split`.

    The first ones are a sample larger where `num_microbatches` does not divide the minibatch.
    """
    return list(zip(*(torch.tensor_split(tensor, num_microbatches) for tensor in tensors), strict=True))


def microbatch_sizes(samples: int, num_microbatches: int) -> list[int]:
    """The samples of each microbatch that `split` makes of a minibatch of so many samples."""
    size, larger = divmod(samples, num_microbatches)
    return [size + (index < larger) for index in range(num_microbatches)]
