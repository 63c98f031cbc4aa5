"""Samples that are read before a run, to hold what they have against the model."""

import random
import time

import numpy as np

from pipetrain.data.fetch import Fetch
from pipetrain.data.loader import Loader

_SECONDS = 0.5
"""For a split."""


def reads_files(loader: Loader) -> bool:
    """Whether a sample is a file that may be damaged, as the data set says."""
    return bool(getattr(loader.dataset, "reads_files", False))


def read_some(fetch: Fetch, samples: int) -> None:
    """Reads the first samples, as many as there is time for; what the fetch checks raises its errors."""
    end = time.monotonic() + _SECONDS
    # nor may the numbers that a data set draws elsewhere depend on the time
    drawn = random.getstate(), np.random.get_state()
    for index in range(samples):
        fetch(0, [index])
        if time.monotonic() > end:
            break
    random.setstate(drawn[0])
    np.random.set_state(drawn[1])
