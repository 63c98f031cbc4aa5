"""What the samples of a data set show: inputs to try a model with, the form of images, the number of classes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from pipetrain.data.fetch import Fetch
from pipetrain.data.interface import Split
from pipetrain.data.order import own_minibatches
from pipetrain.data.ranges import class_count, known_labels, label_of
from pipetrain.data.samples import sample_of
from pipetrain.engine.errors import ConfigError

_FIRST = 5
"""Samples that a model is tried with before it is cut along its graph."""
_COLORS = (1, 3, 4)
"""Numbers of channels by which an image is recognized whose channels come last."""


def first_inputs(dataset: Any) -> Mapping[str, Tensor] | Sequence[Tensor]:
    """The inputs of the first samples; by name where the data set gives dicts.

    Raises:
        ConfigError: there are dicts inside of dicts, or tuples, whose tensors have no known names.
    """
    split = dataset.train
    fetch = Fetch(split, seed=0, inputs=True, targets=False)
    first: Sequence[int] = range(min(len(split), _FIRST))
    if Split(split).batches is not None and Split(split).collate is None:
        first = max(own_minibatches(split, _FIRST, len(split)), key=len)[:_FIRST]  # others may differ in shape
    tensors, _ = fetch(0, first)
    names = fetch.names()
    if names and len(names) != len(tensors):
        raise ConfigError(
            f"dataset: the inputs {', '.join(names)} are {len(tensors)} tensors; a model that is cut along its graph "
            "takes one tensor for each name"
        )
    return dict(zip(names, tensors, strict=True)) if names else tensors


def image_form(dataset: Any) -> dict[str, Any]:
    """Channels and size of the first image; empty if the first input is none (channels, height, width)."""
    first = sample_of(dataset.train, 0)[0]
    if not isinstance(first, Tensor | np.ndarray) or first.ndim != 3:
        return {}
    channels, height, width = first.shape
    if width in _COLORS and channels not in _COLORS:
        return {}
    return {"channels": channels, "size": (height, width)}


def shown_classes(dataset: Any) -> int | None:
    """Number of classes, from what the training split says of them, or the largest label; None if neither says it."""
    if (count := class_count(dataset.train)) is not None:
        return count
    largest = [_largest_label(split) for split in (dataset.train, dataset.eval)]
    known = [label for label in largest if label is not None]
    return max(known) + 1 if len(known) == len(largest) else None


def _largest_label(split: Any) -> int | None:
    """The largest of the labels that a split lists; None without such a list, or if its sample has another label."""
    if (labels := known_labels(split)) is None:
        return None
    index = int(labels.flatten(1).amax(1).argmax()) if labels.ndim > 1 else int(labels.argmax())
    read = label_of(split, index)
    return int(labels.max()) if read is not None and int(read.max()) == int(labels.max()) else None
