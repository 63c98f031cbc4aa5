"""Processes that read minibatches ahead, and last from one drain interval to the next."""

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset
from typing_extensions import override

from pipetrain.data.fetch import Fetch, Minibatch
from pipetrain.data.reader_process import context, leave_signals
from pipetrain.engine.errors import ConfigError, DataError, RunError, one_line
from pipetrain.engine.failure import USERS_ERRORS, Failure, RemoteError

_SHARED_MEMORY_WORDS = ("shm", "shared memory", "Bus error")
"""Words in torch's errors of memory that processes share."""


class Task(NamedTuple):
    """A minibatch to read.

    Attributes:
        source: number of the data set that it is of.
        inputs: True if its inputs are asked for; likewise `targets`.
        indices: its samples.
    """

    source: int
    inputs: bool
    targets: bool
    epoch: int
    indices: Sequence[int]


class Readers:
    """Processes that read minibatches of some data sets for one iteration at a time, until `close`.

    Each process has its own copy of the data sets as they are when it starts.

    Args:
        sources: how each data set is read; which side is read depends on the task.
        workers: number of processes.
        prefetch: minibatches that each process reads ahead; None: 2.
        pinned: True if minibatches are to be in page-locked memory.

    Raises:
        RunError: processes cannot share memory here.
    """

    def __init__(self, sources: Sequence[Fetch], workers: int, prefetch: int | None, *, pinned: bool = False) -> None:
        self._workers = workers
        self._tasks: list[Task] = []
        self._minibatches: DataLoader[Any] = DataLoader(
            _Minibatches(sources),
            batch_size=None,
            sampler=self._tasks,
            num_workers=workers,
            prefetch_factor=prefetch,
            pin_memory=pinned,
            persistent_workers=True,
            generator=torch.Generator(),  # without one, it would draw from the caller's
            multiprocessing_context=context(),
            worker_init_fn=leave_signals,
        )
        with _naming_shared_memory(workers):
            # what workers need first; torch's own attempt leaves an object that cannot be deleted
            (self._minibatches.multiprocessing_context or multiprocessing).Lock()
            self._reading: Any = iter(self._minibatches)  # of no tasks yet, which starts the processes

    def read(self, tasks: Sequence[Task], end: Callable[[], object]) -> Iterator[Minibatch]:
        """The minibatches of `tasks` in their order; `end` is called before the last one, or when no more are taken.

        What an iteration that ended early has asked for is read and dropped.

        Raises:
            ConfigError, DataError: as `Fetch` does.
            RunError: there is too little shared memory.
            RuntimeError: a process has been killed.
        """
        with ExitStack() as ending:
            ending.callback(end)
            self._tasks[:] = tasks
            with _naming_shared_memory(self._workers):
                iter(self._minibatches)  # begins again, with these tasks
            for left in reversed(range(len(tasks))):
                with _naming_shared_memory(self._workers), _naming_lost_reader(self._workers):
                    minibatch = next(self._reading)
                    if isinstance(minibatch, ConfigError):
                        raise minibatch
                    if isinstance(minibatch, Failure):
                        raise DataError(minibatch.line) from RemoteError(minibatch)
                inputs, targets = map(tuple, minibatch)  # torch makes lists of them
                if not left:
                    ending.close()
                yield inputs, targets

    def close(self) -> None:
        """Ends the processes, even in the middle of a minibatch."""
        # left to the garbage collector with a traceback, its queues would close first and it would wait 5 s in vain
        self._reading._shutdown_workers()


@contextmanager
def kept_readers(start: Callable[[], Readers]) -> Iterator[Callable[[Sequence[Task]], Iterator[Minibatch]]]:
    """Readers that successive iterations use: started now, and closed at the end of the context.

    An iteration that begins while another one goes on is given readers that are started for it, and kept as well.
    """
    with ExitStack() as ending:
        idle: list[Readers] = []

        def started() -> Readers:
            readers = start()
            ending.callback(readers.close)
            return readers

        def read(tasks: Sequence[Task]) -> Iterator[Minibatch]:
            readers = idle.pop() if idle else started()
            yield from readers.read(tasks, lambda: idle.append(readers))

        idle.append(started())
        yield read


class _Minibatches(Dataset[Minibatch | ConfigError | Failure]):
    """A data set whose items are the minibatches of tasks, for processes to read.

    An error comes back as a value: raised in a worker it would arrive as a traceback in many lines.
    """

    def __init__(self, sources: Sequence[Fetch]) -> None:
        self._sources = sources

    @override
    def __getitem__(self, task: Task) -> Minibatch | ConfigError | Failure:
        fetch = replace(self._sources[task.source], inputs=task.inputs, targets=task.targets)
        try:
            return fetch(task.epoch, task.indices)
        except ConfigError as error:
            return error
        except USERS_ERRORS as error:
            return Failure.of(error)


@contextmanager
def _naming_shared_memory(workers: int) -> Iterator[None]:
    """Names the cause of what goes wrong between the workers and this process, which share memory.

    Raises:
        RunError: there is too little of it.
    """
    try:
        yield
    except (OSError, RuntimeError, DataError) as error:
        if not isinstance(error, OSError) and not any(word in str(error) for word in _SHARED_MEMORY_WORDS):
            raise
        raise RunError(
            f"dataset.workers={workers}: the workers cannot pass samples through shared memory (/dev/shm): "
            f"{one_line(error)}; dataset.workers=0 needs none"
        ) from error


@contextmanager
def _naming_lost_reader(workers: int) -> Iterator[None]:
    """Names the cause if samples that a process has announced cannot be fetched from it.

    Raises:
        RunError: it has ended.
    """
    try:
        yield
    except (FileNotFoundError, ConnectionError) as error:
        text = f"dataset.workers={workers}: a process that reads samples has ended, as if killed"
        raise RunError(f"{text}: {one_line(error)}") from error
