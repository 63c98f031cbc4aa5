"""Processes that read for loaders, kept over iterations."""

import multiprocessing
import os
import time

import pytest
import torch

from pipetrain.data.loader import Loader, keeping_readers
from pipetrain.engine.errors import DataError


class Samples:
    """Sample i is (a random number, the process that reads it), and `broken` raises."""

    def __init__(self, broken=None):
        self.broken = broken

    def __len__(self):
        return 12

    def __getitem__(self, index):
        if index == self.broken:
            raise OSError("unreadable")
        return torch.rand(()), os.getpid()


class Told(Samples):
    """The same, whose targets are known without reading."""

    def target(self, index):
        return index


def loaders(*datasets, workers=2):
    return [Loader(dataset, batch_size=2, shuffle=False, workers=workers) for dataset in datasets]


def readers_of(minibatches):
    return {pid for _, (pids,) in minibatches for pid in pids.tolist()}


def children():
    return {child.pid for child in multiprocessing.active_children()}


def test_loaders_share_processes_that_are_kept_over_iterations():
    train, evaluation = loaders(Samples(), Samples())
    with keeping_readers([train, evaluation], inputs=True, targets=True):
        begun = children()
        assert len(begun) == 2
        for loader in (train, evaluation, train):
            assert readers_of(loader.samples(0)) == begun
        assert children() == begun
    assert not children()
    assert readers_of(train.samples(0)).isdisjoint(begun)


def test_iterations_side_by_side_have_processes_of_their_own():
    (loader,) = loaders(Samples(), workers=1)
    with keeping_readers([loader], inputs=True, targets=True):
        for _ in range(2):
            for (inputs,), (numbers,), (pids,) in zip(
                loader.inputs(0), (inputs for inputs, _ in loaders(Samples(), workers=0)[0].samples(0)),
                loader.targets(0), strict=True,
            ):  # fmt: skip
                assert torch.equal(inputs, numbers)
                assert set(pids.tolist()) < children()
            assert len(children()) == 2
    assert not children()


def test_iteration_that_ends_early_leaves_nothing_to_the_next():
    (loader,) = loaders(Samples())
    expected = [inputs for (inputs,) in loaders(Samples(), workers=0)[0].inputs(1)]
    with keeping_readers([loader], inputs=True, targets=False):
        for taken in (1, 2, 6):
            reading = loader.inputs(1)
            found = [inputs for (inputs,), _ in zip(reading, range(taken), strict=False)]
            del reading
            assert all(map(torch.equal, found, expected[:taken]))
        assert len(children()) == 2


def test_error_of_a_sample_ends_its_iteration_alone():
    (loader,) = loaders(Samples(broken=4))
    with keeping_readers([loader], inputs=True, targets=True):
        begun = children()
        for _ in range(2):
            with pytest.raises(DataError, match="sample 4: OSError: unreadable"):
                list(loader.samples(0))
        assert readers_of(loader.samples(0, 3)) <= begun == children()


def test_processes_end_in_the_middle_of_a_minibatch():
    class Slow(Samples):
        def __getitem__(self, index):
            time.sleep(1000 if index > 3 else 0)
            return super().__getitem__(index)

    (loader,) = loaders(Slow())
    with keeping_readers([loader], inputs=True, targets=True):
        reading = loader.samples(0)
        next(reading)
    assert not children()
    reading.close()


@pytest.mark.parametrize(
    ("workers", "inputs", "targets", "started"),
    [(0, True, True, 0), (1, False, False, 0), (1, False, True, 0), (1, True, False, 1), (1, True, True, 1)],
)
def test_processes_are_started_only_for_what_must_be_read(workers, inputs, targets, started):
    with keeping_readers(loaders(Told(), Told(), workers=workers), inputs=inputs, targets=targets):
        assert len(children()) == started
