"""What determines the shapes of messages: the samples of a microbatch, unless shapes vary otherwise, too."""

from pipetrain.data.loader import Loader
from pipetrain.data.microbatches import microbatch_sizes
from pipetrain.executors.p2p import Key
from pipetrain.executors.stage_runner import BackwardId
from pipetrain.program.drain_interval import DrainInterval


def evaluation_keys(loader: Loader) -> list[Key]:
    """The keys of the messages of an evaluation, one for each part."""
    return [None if loader.varying else ("evaluation", size) for size in loader.sizes(0)]


def training_keys(loader: Loader, interval: DrainInterval, num_microbatches: int) -> dict[BackwardId, Key]:
    """The key of each microbatch's messages, and of the gradients of a whole minibatch."""
    keys: dict[BackwardId, Key] = {}
    sizes = loader.sizes(interval.epoch)[interval.first : interval.last]
    for t, size in enumerate(sizes, start=interval.start):
        keys[t, None] = None if loader.varying else ("minibatch", size)
        for j, samples in enumerate(microbatch_sizes(size, num_microbatches)):
            keys[t, j] = None if loader.varying else samples
    return keys
