"""Minibatches of a data set, in an order and with values that no process, worker or executor can change."""

import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor

from pipetrain.data.fetch import Fetch, Minibatch, form_of
from pipetrain.data.interface import Split
from pipetrain.data.order import own_minibatches, shuffled
from pipetrain.data.ranges import LabelRange, TokenRange
from pipetrain.data.readers import Readers, Task, kept_readers
from pipetrain.data.samples import naming_errors
from pipetrain.engine.errors import ConfigError, as_configured
from pipetrain.engine.tensors import Tensors


class Loader:
    """Minibatches of a map-style data set in an order that depends on (seed, epoch) alone.

    Before a sample is read, the default generators of torch, Python and numpy are seeded from (seed, epoch, sample),
    and afterwards they are put back: augmentation that draws from them depends on neither process nor worker nor order,
    and the caller's own random numbers are left as they were. Data sets that draw from elsewhere are outside this
    promise. The generators belong to the process, so read in the thread that also runs the layers, or use workers.

    `Split` lists the optional members of a data set, such as `target`, `batches` and `collate`.

    Attributes:
        pinned: True if minibatches are in page-locked memory, from which copies to a CUDA device do not wait.
        stored: True if inputs are read as they are stored, for `finish` to complete on the device.
        labels: labels that targets may have; None if they are no labels, or unknown.
        tokens: ids that inputs may have; None if they are no tokens, or unknown.
    """

    def __init__(  # noqa: PLR0913  (one for each setting of a loader, by name)
        self,
        dataset: Any,
        *,
        batch_size: int,
        microbatches: int = 1,
        seed: int = 0,
        shuffle: bool = True,
        limit: int | None = None,
        workers: int = 0,
        prefetch: int | None = None,
        drop_short: bool = True,
    ) -> None:
        """Plans an epoch of the first `limit` samples (None: all), read by `workers` processes (0: the caller's own),
        each `prefetch` minibatches ahead (None: 2).

        The last minibatch may be smaller; `drop_short` drops it when it has fewer samples than `microbatches`.

        Raises:
            ConfigError: the data set has no length, its `batches` returns something else, or an epoch has no minibatch.
            DataError: its `batches` raises an exception.
        """
        self.dataset = dataset
        self.seed = seed
        self.workers = workers
        self.prefetch = prefetch
        self.pinned = self.stored = False
        self.labels: LabelRange | None = None
        self.tokens: TokenRange | None = None
        samples = self.samples_per_epoch = _length(dataset, limit)
        self._shuffle = shuffle and not Split(dataset).ordered
        self._whole = Split(dataset).batches is not None
        cut = [range(start, min(start + batch_size, samples)) for start in range(0, samples, batch_size)]
        minibatches = own_minibatches(dataset, batch_size, samples) if self._whole else cut
        least = max(1, min(microbatches, batch_size)) if drop_short else 1
        self._minibatches = [indices for indices in minibatches if len(indices) >= least]
        self._short = [indices for indices in minibatches if len(indices) < least]
        if not self._minibatches:
            raise ConfigError(
                f"dataset.limit={as_configured(limit)}: {samples} samples make no minibatch of "
                f"{microbatches} microbatches with train.batch_size={batch_size}"
            )
        self._sizes = list(map(len, self._minibatches))
        self._newest: tuple[int, list[Sequence[int]]] | None = None
        self._drawn: list[bool] = []
        self._kept: tuple[int, Callable[[Sequence[Task]], Iterator[Minibatch]]] | None = None

    def __len__(self) -> int:
        """Number of minibatches of an epoch."""
        return len(self._minibatches)

    @property
    def dropped(self) -> int:
        """Number of samples in minibatches that are dropped because they are too short."""
        return sum(map(len, self._short))

    @property
    def unlisted(self) -> int:
        """Number of samples that the data set's own `batches` puts into no minibatch."""
        if not self._whole:
            return 0
        listed = itertools.chain.from_iterable((*self._minibatches, *self._short))
        return self.samples_per_epoch - len(set(listed))

    def without_workers(self) -> "Loader":
        """A copy that reads in the caller's own process, for one minibatch, which no worker needs to be started for."""
        alone = copy.copy(self)
        alone.workers = 0
        return alone

    def minibatches(self, epoch: int) -> list[Sequence[int]]:
        """The samples of each minibatch, in the order in which they are read."""
        if not self._shuffle:
            return self._minibatches
        if self._newest is None or self._newest[0] != epoch:
            order = shuffled(len(self) if self._whole else self.samples_per_epoch, self.seed, epoch)
            if self._whole:
                minibatches = [self._minibatches[index] for index in order]
            else:
                minibatches = [order[part[0] : part[-1] + 1] for part in self._minibatches]
            self._newest = epoch, minibatches
        return self._newest[1]

    def sizes(self, epoch: int) -> list[int]:
        """Number of samples of each minibatch."""
        return list(map(len, self.minibatches(epoch))) if self._whole else self._sizes

    @property
    def varying(self) -> bool:
        """True if minibatches of equally many samples may differ in shape otherwise, as padded text does."""
        return self._whole or Split(self.dataset).collate is not None

    def size_of(self, step: int) -> int:
        """Samples of the minibatch of a step, counted from 0 over all epochs."""
        epoch, index = divmod(step, len(self))
        return len(self.minibatches(epoch)[index]) if self._whole else self._sizes[index]

    def finish(self, inputs: Tensors) -> Tensors:
        """The inputs that layers take; of samples read as stored, the data set's `on_device` computes them.

        Raises:
            ConfigError: it returns no tensors.
            DataError: it raised an exception.
        """
        split, owner = Split(self.dataset), type(self.dataset).__name__
        if not self.stored or split.stored is None or split.on_device is None:
            return inputs
        with naming_errors(f"{owner}.on_device"):
            made = split.on_device(inputs)
        if not isinstance(made, tuple | list) or not all(isinstance(each, Tensor) for each in made):
            raise ConfigError(f"dataset: {owner}.on_device must return a tuple of tensors, not {form_of(made)}")
        return tuple(made)

    def inputs(self, epoch: int, first: int = 0, last: int | None = None, every: int = 1) -> Iterator[Tensors]:
        """The inputs of minibatches first to last - 1 of `epoch`, each `every`-th; tuples of tensors (samples, …)."""
        return (inputs for inputs, _ in self._read(epoch, slice(first, last, every), inputs=True))

    def targets(self, epoch: int, first: int = 0, last: int | None = None, every: int = 1) -> Iterator[Tensors]:
        """The targets of minibatches first to last - 1 of `epoch`, each `every`-th; tuples of tensors (samples, …)."""
        return (targets for _, targets in self._read(epoch, slice(first, last, every), targets=True))

    def samples(
        self, epoch: int, first: int = 0, last: int | None = None, every: int = 1
    ) -> Iterator[tuple[Tensors, Tensors]]:
        """Inputs and targets of minibatches first to last - 1 of `epoch`, each `every`-th, every sample read once."""
        return self._read(epoch, slice(first, last, every), inputs=True, targets=True)

    def example(self) -> Tensors:
        """The inputs of a minibatch of average length, which no shuffle changes."""
        middle = self._minibatches[len(self) // 2]  # a data set that makes them itself sorts them by length
        return Fetch(self.dataset, self.seed, inputs=True, targets=False)(0, middle)[0]

    def _read(self, epoch: int, which: slice, *, inputs: bool = False, targets: bool = False) -> Iterator[Minibatch]:
        first, last = which.start, len(self) if which.stop is None else which.stop
        if not 0 <= first <= last <= len(self):
            raise ValueError(f"minibatches {first} … {last}: an epoch has {len(self)}")
        plan = self.minibatches(epoch)[which]
        fetch = self._fetch(inputs=inputs, targets=targets)
        if self.workers and fetch.decodes and plan:
            source, read = self._kept or (0, partial(self._read_by_own_readers, fetch))
            return read([Task(source, inputs, targets, epoch, indices) for indices in plan])
        minibatches = (fetch(epoch, indices) for indices in plan)
        return map(_pinned, minibatches) if self.pinned else minibatches

    def _fetch(self, *, inputs: bool, targets: bool) -> Fetch:
        return Fetch(self.dataset, self.seed, inputs, targets, self.labels, self.tokens, self.stored, self._drawn)

    def _read_by_own_readers(self, fetch: Fetch, tasks: Sequence[Task]) -> Iterator[Minibatch]:
        readers = Readers([fetch], min(self.workers, len(tasks)), self.prefetch, pinned=self.pinned)
        yield from readers.read(tasks, readers.close)


def _length(dataset: Any, limit: int | None) -> int:
    try:
        return len(dataset) if limit is None else min(limit, len(dataset))
    except TypeError as error:
        kind = type(dataset).__name__
        raise ConfigError(f"dataset: {kind} must be a map-style data set, with __len__ and __getitem__") from error


@contextmanager
def keeping_readers(loaders: Sequence[Loader], *, inputs: bool, targets: bool) -> Iterator[None]:
    """Within it, processes that are started now read for all of `loaders`, which differ in their samples alone.

    Otherwise a loader starts its workers for each iteration. No process is started if the loaders have no workers, or
    need none for inputs, targets or both, as far as these are asked for.

    Raises:
        RunError: processes cannot share memory here.
    """
    sources, first = [loader._fetch(inputs=inputs, targets=targets) for loader in loaders], loaders[0]
    if not (first.workers and (inputs or targets) and any(source.decodes for source in sources)):
        yield
        return
    with kept_readers(partial(Readers, sources, first.workers, first.prefetch, pinned=first.pinned)) as read:
        for source, loader in enumerate(loaders):
            loader._kept = source, read
        try:
            yield
        finally:
            for loader in loaders:
                loader._kept = None


def _pinned(minibatch: Minibatch) -> Minibatch:
    inputs, targets = (tuple(each.pin_memory() for each in side) for side in minibatch)
    return inputs, targets
