"""Checks of a split's samples before a run: of all labels that it lists, and of the first samples."""

import time

from pipetrain.data.fetch import Fetch
from pipetrain.data.interface import Split
from pipetrain.data.loader import Loader
from pipetrain.data.ranges import known_labels, label_of
from pipetrain.engine.seeding import python_generators_kept

_SECONDS = 0.5
"""Time to read samples of a split."""


def check_samples(loader: Loader) -> None:
    """Checks the labels and tokens that a loader expects, and reads some samples only if that can show more.

    Files may be damaged, and a label or token id out of range. The remaining samples are checked when they are read.

    Raises:
        ConfigError: a label or token id is out of range.
        DataError: a sample cannot be read.
    """
    labels, tokens = loader.labels, loader.tokens
    files, all_checked = Split(loader.dataset).reads_files, _check_stored_labels(loader)
    inputs = files or (tokens is not None and tokens.known is None)
    targets = files or not all_checked
    if inputs or targets:
        fetch = Fetch(loader.dataset, loader.seed, inputs=inputs, targets=targets, labels=labels, tokens=tokens)
        _read_some(fetch, loader.samples_per_epoch)


def _check_stored_labels(loader: Loader) -> bool:
    """Checks all labels of a split if no sample must be read for that; returns True if so, or if there are none."""
    if (labels := loader.labels) is None:
        return True
    known = known_labels(loader.dataset)
    if known is None:
        return False
    index = labels.outside(known[: loader.samples_per_epoch])
    # the data set may change its labels when it reads them
    label = None if index is None else label_of(loader.dataset, index)
    if index is not None and label is not None:
        labels.check(label[None], [index])
    return True


def _read_some(fetch: Fetch, samples: int) -> None:
    """Reads the first samples for up to half a second."""
    end = time.monotonic() + _SECONDS
    # nor may the numbers that a data set draws elsewhere depend on the time
    with python_generators_kept():
        for index in range(samples):
            fetch(0, [index])
            if time.monotonic() > end:
                break
