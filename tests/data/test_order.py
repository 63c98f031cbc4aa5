"""Minibatches that a data set makes itself."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipetrain.data.loader import Loader
from pipetrain.data.order import length_buckets


class Bucketed:
    """Sample i is i; neighbors share a minibatch of at most the batch size, the last one is alone."""

    def __init__(self, samples=11):
        self.samples = samples

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        return index, index

    def batches(self, batch_size, samples):
        whole = [
            list(range(start, min(start + batch_size, samples - 1))) for start in range(0, samples - 1, batch_size)
        ]
        return [*whole, [samples - 1]]


class Ordered(Bucketed):
    ordered = True


def test_own_minibatches_are_read_whole_in_seeded_order():
    loader = Loader(Bucketed(), batch_size=3, seed=4)
    whole = {(0, 1, 2), (3, 4, 5), (6, 7, 8), (9,), (10,)}
    seen = [[tuple(targets.tolist()) for (targets,) in loader.targets(epoch)] for epoch in range(4)]
    assert all(set(epoch) == whole for epoch in seen)
    assert len(set(map(tuple, seen))) > 1
    assert [tuple(indices) for indices in Loader(Bucketed(), batch_size=3, seed=4).minibatches(2)] == seen[2]
    assert loader.sizes(1) == list(map(len, seen[1]))
    assert [loader.size_of(step) for step in range(5, 10)] == loader.sizes(1)


def test_ordered_minibatches_are_never_shuffled():
    loader = Loader(Ordered(), batch_size=4, shuffle=True)
    assert [list(each) for each in loader.minibatches(3)] == Ordered().batches(4, 11)


@pytest.mark.parametrize(
    "grouped", [lambda order: np.array_split(order, 4), lambda order: torch.from_numpy(order).split(3)]
)
def test_own_minibatches_may_be_arrays(grouped):
    class Sorted(Bucketed):
        def batches(self, _batch_size, samples):
            return grouped(np.arange(samples)[::-1].copy())

    loader = Loader(Sorted(), batch_size=3, shuffle=False)
    seen = [index for (targets,) in loader.targets(0) for index in targets.tolist()]
    assert seen == list(range(10, -1, -1))


def test_samples_in_no_minibatch_and_those_of_short_ones_are_counted_apart():
    class Repeated(Bucketed):
        def batches(self, _batch_size, _samples):
            return [[0, 1, 2], [1, 2, 3], [4, 5]]

    loader = Loader(Repeated(), batch_size=3, microbatches=3)
    assert (len(loader), loader.unlisted, loader.dropped) == (2, 5, 2)


def test_minibatches_of_the_first_samples_alone_are_made_of_them():
    loader = Loader(Bucketed(), batch_size=3, limit=5, shuffle=False)
    assert [list(each) for each in loader.minibatches(0)] == [[0, 1, 2], [3], [4]]


def test_own_minibatches_smaller_than_microbatches_are_dropped():
    loader = Loader(Bucketed(), batch_size=3, microbatches=3)
    assert (len(loader), loader.dropped) == (3, 2)


LENGTHS = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=60)


@given(lengths=LENGTHS, batch_size=st.integers(1, 10), batch_tokens=st.none() | st.integers(1, 100))
def test_minibatches_hold_each_sample_once_sorted_by_length(lengths, batch_size, batch_tokens):
    batches = length_buckets(lengths, batch_size, batch_tokens)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    longest = [max(max(lengths[index]) for index in batch) for batch in batches]
    assert all(one <= other for one, other in pairwise(longest))
    for batch, positions in zip(batches, longest, strict=True):
        assert len(batch) <= batch_size
        assert len(batch) == 1 or batch_tokens is None or len(batch) * positions <= batch_tokens


def test_minibatches_are_as_full_as_the_limits_allow():
    assert [len(batch) for batch in length_buckets([(4,)] * 10, 8, 12)] == [3, 3, 3, 1]
    assert [len(batch) for batch in length_buckets([(4,)] * 10, 8)] == [8, 2]


def test_samples_of_one_length_are_mixed_the_same_way_each_time():
    first = length_buckets([(3,)] * 50, 5)
    assert first == length_buckets([(3,)] * 50, 5)
    assert first != [list(range(start, start + 5)) for start in range(0, 50, 5)]


def test_sequences_of_a_sample_count_one_after_the_other():
    assert length_buckets([(5, 2), (5, 5), (5, 1), (5, 4)], 2) == [[2, 0], [3, 1]]
