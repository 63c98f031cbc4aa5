from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pipetrain.data.length_buckets import bucketed

LENGTHS = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=60)


@given(lengths=LENGTHS, batch_size=st.integers(1, 10), batch_tokens=st.none() | st.integers(1, 100))
def test_minibatches_hold_each_sample_once_within_the_limits_from_short_to_long(lengths, batch_size, batch_tokens):
    batches = bucketed(lengths, batch_size, batch_tokens)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    longest = [max(max(lengths[index]) for index in batch) for batch in batches]
    assert all(one <= other for one, other in pairwise(longest))
    for batch, positions in zip(batches, longest, strict=True):
        assert len(batch) <= batch_size
        assert len(batch) == 1 or batch_tokens is None or len(batch) * positions <= batch_tokens


def test_minibatches_are_as_full_as_the_limits_allow():
    assert [len(batch) for batch in bucketed([(4,)] * 10, 8, 12)] == [3, 3, 3, 1]
    assert [len(batch) for batch in bucketed([(4,)] * 10, 8)] == [8, 2]


def test_samples_of_one_length_are_mixed_the_same_way_each_time():
    first = bucketed([(3,)] * 50, 5)
    assert first == bucketed([(3,)] * 50, 5)
    assert first != [list(range(start, start + 5)) for start in range(0, 50, 5)]


def test_sequences_of_a_sample_count_one_after_the_other():
    assert bucketed([(5, 2), (5, 5), (5, 1), (5, 4)], 2) == [[2, 0], [3, 1]]
