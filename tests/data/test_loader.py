import multiprocessing
import random
import time
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import ragged_data
from support.refusals import assert_refused

from pipetrain.data.loader import Loader
from pipetrain.engine.errors import DataError, RunError
from pipetrain.engine.failure import Failure


class Noisy:
    """Sample i is (i, a random number), so that a minibatch shows which samples it holds and what they drew."""

    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        return torch.stack((torch.tensor(float(index)), torch.rand(()))), index


class WithTarget(Noisy):
    def __getitem__(self, index):
        raise AssertionError("decoded")

    def target(self, index):
        return torch.tensor(index)


class Listed(list):
    """A data set of the samples listed."""


def read(loader, epoch=0, **span):
    return [(tuple(inputs), tuple(targets)) for inputs, targets in loader.samples(epoch, **span)]


def equal(first, second):
    return len(first) == len(second) and all(
        torch.equal(a, b)
        for one, two in zip(first, second, strict=True)
        for a, b in zip((*one[0], *one[1]), (*two[0], *two[1]), strict=True)
    )


@given(
    samples=st.integers(1, 60),
    batch_size=st.integers(1, 20),
    microbatches=st.integers(1, 6),
    limit=st.none() | st.integers(1, 70),
    shuffle=st.booleans(),
    drop_short=st.booleans(),
)
def test_loader_gives_each_sample_once_and_drops_short_batches(
    samples, batch_size, microbatches, limit, shuffle, drop_short
):
    expected = min(samples, limit or samples)
    ragged = expected % batch_size
    drops = drop_short and 0 < ragged < microbatches
    options = dict(batch_size=batch_size, microbatches=microbatches, limit=limit, shuffle=shuffle)
    if drops and expected < batch_size:
        assert_refused("make no minibatch", Loader, Noisy(samples), drop_short=drop_short, **options)
        return
    loader = Loader(Noisy(samples), drop_short=drop_short, **options)
    seen = [targets.tolist() for (targets,) in loader.targets(0)]
    assert [len(batch) for batch in seen] == loader.sizes(0)
    assert loader.dropped == (ragged if drops else 0)
    assert sum(loader.sizes(0)) + loader.dropped == expected
    flat = [index for batch in seen for index in batch]
    assert flat == [index for batch in loader.minibatches(0) for index in batch]
    assert len(set(flat)) == len(flat)
    assert set(flat) <= set(range(expected))
    if not shuffle:
        assert flat == list(range(len(flat)))


def test_loader_order_depends_on_seed_and_epoch_alone():
    first, again, other = (Loader(Noisy(50), batch_size=7, seed=seed) for seed in (0, 0, 1))
    assert first.minibatches(3) == again.minibatches(3)
    assert len({str(made) for made in (first.minibatches(0), first.minibatches(1), other.minibatches(0))}) == 3


def test_example_has_the_shapes_of_an_average_minibatch_under_every_seed():
    for seed in range(3):
        (images,) = Loader(ragged_data.GroupedBySize(9), batch_size=3, microbatches=1, seed=seed).example()
        assert images.shape[2:] == (7, 7)


def test_random_numbers_belong_to_the_sample():
    """The same draw whether samples are shuffled, cut into other minibatches, or read from the middle."""
    shuffled = Loader(Noisy(20), batch_size=6)
    ordered = Loader(Noisy(20), batch_size=5, shuffle=False)
    draws = dict(torch.cat([inputs for (inputs,) in shuffled.inputs(2)]).tolist())
    assert len(set(draws.values())) == 20
    assert draws == dict(torch.cat([inputs for (inputs,) in ordered.inputs(2)]).tolist())
    assert draws != dict(torch.cat([inputs for (inputs,) in ordered.inputs(3)]).tolist())
    assert equal(read(shuffled)[1:3], read(shuffled, first=1, last=3))


def test_inputs_and_targets_read_apart_equal_those_read_together():
    loader = Loader(Noisy(9), batch_size=4)
    together = read(loader)
    assert equal(together, list(zip(loader.inputs(0), loader.targets(0), strict=True)))


def test_targets_decode_nothing_where_the_data_set_can_tell():
    loader = Loader(WithTarget(6), batch_size=4, shuffle=False, workers=1)
    assert [targets.tolist() for (targets,) in loader.targets(0)] == [[0, 1, 2, 3], [4, 5]]


def test_loader_leaves_the_callers_random_numbers_alone():
    torch.manual_seed(5)
    expected = torch.rand(4)
    for workers in (0, 1):
        torch.manual_seed(5)
        drawn = [torch.rand(1)]
        for minibatch in Loader(Noisy(6), batch_size=2, workers=workers).samples(0):
            assert minibatch
            drawn.append(torch.rand(1))
        assert torch.equal(torch.cat(drawn), expected)


class Masked(Noisy):
    """Draws in `collate`, as the masking of a language model does."""

    def collate(self, pairs):
        inputs, targets = torch.stack([pair[0] for pair in pairs]), torch.tensor([pair[1] for pair in pairs])
        mask = torch.rand(len(pairs))
        return (inputs, mask), (targets, mask)


def test_random_numbers_of_collate_belong_to_the_minibatch():
    loader = Loader(Masked(9), batch_size=4)
    for (_, mask), (_, of_targets) in zip(loader.inputs(1), loader.targets(1), strict=True):
        assert torch.equal(mask, of_targets)
    assert not torch.equal(next(loader.inputs(0))[1], next(loader.inputs(1))[1])


class Normalized(Noisy):
    """Sums so many elements that threads would share the work."""

    def __getitem__(self, index):
        numbers = torch.rand(150_000) * 1e3
        return numbers.sum()[None], index


@pytest.mark.parametrize("threads", [1, 2])
def test_samples_do_not_depend_on_the_threads_of_the_stage(threads):
    loader = Loader(Normalized(8), batch_size=4)
    expected = read(loader)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        assert equal(read(loader), expected)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("workers", [1, 2])
def test_loader_workers_change_no_result(workers):
    plain, parallel = (Loader(Noisy(23), batch_size=4, workers=count) for count in (0, workers))
    assert equal(read(plain, 1), read(parallel, 1))
    assert equal(read(plain, 1, first=2, last=4), read(parallel, 1, first=2, last=4))
    assert read(parallel, 1, first=2, last=2) == []


class Flipped(Noisy):
    """Draws in Python and numpy, for all samples but the first; the input is to be treated as the target is."""

    def __getitem__(self, index):
        drawn = torch.tensor([float(index), random.random(), np.random.rand()] if index else [0.0] * 3)
        return drawn, drawn

    def collate(self, pairs):
        drawn = torch.full((len(pairs), 1), random.random()), torch.full((len(pairs), 1), np.random.rand())
        inputs, targets = (torch.cat([torch.stack(side), *drawn], 1) for side in zip(*pairs, strict=True))
        return inputs, targets


@pytest.mark.parametrize("workers", [0, 1])
def test_numbers_of_python_and_numpy_belong_to_the_sample(workers):
    state, (_, numbers, *_) = random.getstate(), np.random.get_state()
    drawn = {}
    for seed, epoch in ((0, 0), (0, 1), (1, 0)):
        loader = Loader(Flipped(6), batch_size=2, workers=workers, shuffle=False, seed=seed)
        inputs = [inputs for (inputs,) in loader.inputs(epoch)]
        later = Loader(Flipped(6), batch_size=2, shuffle=False, seed=seed).targets(epoch, first=1)
        assert all(torch.equal(one, other) for one, (other,) in zip(inputs[1:], later, strict=True))
        drawn[seed, epoch] = torch.cat(inputs)[1:, 1:].flatten().tolist()
    assert len({number for found in drawn.values() for number in found}) == 3 * (2 * 5 + 2 * 3)
    assert random.getstate() == state
    assert (np.random.get_state()[1] == numbers).all()


def test_loader_with_workers_serves_two_readers_side_by_side():
    loader = Loader(Noisy(9), batch_size=4, workers=1)
    together = zip(loader.inputs(0), loader.targets(0), strict=True)
    assert equal(list(together), read(Loader(Noisy(9), batch_size=4)))


def _read_in_child(queue, workers):
    queue.put([targets.tolist() for (targets,) in Loader(Noisy(9), batch_size=4, workers=workers).targets(0)])


@pytest.mark.slow
def test_loader_workers_start_inside_a_spawned_process():
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    child = context.Process(target=_read_in_child, args=(queue, 1))
    child.start()
    answer = queue.get(timeout=120)
    child.join()
    assert answer == [targets.tolist() for (targets,) in Loader(Noisy(9), batch_size=4).targets(0)]


def test_samples_may_hold_tuples_of_tensors_on_either_side():
    pair = ((torch.zeros(3), torch.ones(2, dtype=torch.long)), (torch.tensor(1), torch.tensor(2.0)))
    ((inputs, targets),) = Loader(Listed([pair, pair]), batch_size=2).samples(0)
    assert [tuple(tensor.shape) for tensor in inputs] == [(2, 3), (2, 2)]
    assert [tensor.dtype for tensor in targets] == [torch.int64, torch.float32]


def test_samples_are_collated_as_torch_does_in_order():
    values = {"ids": np.arange(3), "more": {"mask": [True, False]}, "scale": 0.5}
    samples = [(values, {"label": np.int64(1)}), (values, {"label": 2})]
    ((inputs, targets),) = Loader(Listed(samples), batch_size=2, shuffle=False).samples(0)
    assert [each.tolist() for each in inputs] == [[[0, 1, 2]] * 2, [True] * 2, [False] * 2, [0.5, 0.5]]
    assert [each.dtype for each in inputs] == [torch.int64, torch.bool, torch.bool, torch.float64]
    assert [each.tolist() for each in targets] == [[1, 2]]


def test_minibatches_beyond_the_epoch_are_refused():
    loader = Loader(Noisy(8), batch_size=4)
    for first, last in ((0, 3), (-1, 1), (2, 1)):
        with pytest.raises(ValueError, match="an epoch has 2"):
            loader.inputs(0, first, last)


def test_workers_end_once_the_last_minibatch_is_read():
    before = multiprocessing.active_children()
    reading = Loader(Noisy(5), batch_size=2, workers=2).samples(0)
    for _ in range(3):
        next(reading)
    assert multiprocessing.active_children() == before
    reading.close()


def test_worker_reads_so_many_minibatches_ahead():
    class Counting(Noisy):
        read = multiprocessing.Value("i", 0)

        def __getitem__(self, index):
            with self.read.get_lock():
                self.read.value += 1
            return super().__getitem__(index)

    dataset = Counting(40)
    reading = Loader(dataset, batch_size=2, workers=1, prefetch=5).samples(0)
    next(reading)
    deadline = time.monotonic() + 20
    while dataset.read.value < 2 * 6 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert dataset.read.value == 2 * 6
    reading.close()


@pytest.mark.parametrize("workers", [0, 1])
def test_pinned_minibatches_have_the_same_values(monkeypatch, workers):
    pinned = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda each, *_: pinned.append(each) or each)
    plain = [tensors for minibatch in Loader(Noisy(5), batch_size=2).samples(0) for (tensors,) in minibatch]
    loader = Loader(Noisy(5), batch_size=2, workers=workers)
    loader.pinned = True
    with warnings.catch_warnings(action="ignore"):  # torch pins nothing where there is no device
        found = [tensors for minibatch in loader.samples(0) for (tensors,) in minibatch]
    assert all(torch.equal(one, other) for one, other in zip(found, plain, strict=True))
    assert len(pinned) == (0 if workers and not torch.cuda.is_available() else len(plain))


def test_exception_in_a_worker_is_told_as_it_was_there():
    class Corrupt(Noisy):
        def __getitem__(self, index):
            return {}["label"]

    with pytest.raises(DataError, match=r"^dataset: sample 0: KeyError: 'label' \(.*test_loader.py:\d+\)$") as caught:
        next(Loader(Corrupt(4), batch_size=2, workers=1, shuffle=False).samples(0))
    assert "in __getitem__" in Failure.of(caught.value).traceback
    assert not multiprocessing.active_children(), "workers wait for the garbage collector, and that one 5 s for them"


@pytest.mark.parametrize("refused", [OSError(30, "Read-only file system"), RuntimeError("unable to open shm")])
def test_missing_shared_memory_is_named_with_a_way_around(monkeypatch, refused):
    def lock(_context):
        raise refused

    monkeypatch.setattr(multiprocessing.context.BaseContext, "Lock", lock)
    with pytest.raises(RunError, match=r"dataset.workers=1: .*/dev/shm.*; dataset.workers=0 needs none"):
        next(Loader(Noisy(4), batch_size=2, workers=1).samples(0))


def test_reader_that_ended_before_its_samples_were_fetched_is_named(monkeypatch):
    def fetched(_descriptor):
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr("multiprocessing.resource_sharer.DupFd.detach", fetched)
    with pytest.raises(RunError, match=r"^dataset.workers=1: a process that reads samples has ended, as if killed: "):
        next(Loader(Noisy(4), batch_size=2, workers=1).samples(0))
