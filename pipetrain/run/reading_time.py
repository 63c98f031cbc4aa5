"""How long the stages at both ends of a pipeline read the data of a minibatch, measured."""

import statistics
import time
from collections.abc import Iterator

from pipetrain.data.loader import Loader
from pipetrain.planner.profile.profile import LoaderTime
from pipetrain.tensors import Tensors


def measured_reading(loader: Loader, repeats: int) -> LoaderTime:
    """What the first stage takes to read a minibatch's inputs, and the last its targets.

    They read between their operations, so it adds to these. Processes that read for them (`dataset.workers`) do so
    meanwhile, and take them no time.

    Args:
        loader: of the training data.
        repeats: minibatches that are timed, of the first epoch and after one more, as far as it has so many.
    """
    if loader.workers:
        return LoaderTime()
    last = min(len(loader), 1 + repeats)
    return LoaderTime(_median_s(loader.inputs(0, 0, last)), _median_s(loader.targets(0, 0, last)))


def _median_s(minibatches: Iterator[Tensors]) -> float:
    seconds = []
    began = time.perf_counter()
    for _ in minibatches:
        ended = time.perf_counter()
        seconds.append(ended - began)
        began = ended
    return statistics.median(seconds[1:] or seconds)
