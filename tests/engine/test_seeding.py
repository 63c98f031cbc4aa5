import torch
from hypothesis import given
from hypothesis import strategies as st

from pipetrain.engine.seeding import key

numbers = st.lists(st.integers(0, 2**40), max_size=5)


def test_keys_of_given_numbers_never_change():
    assert key() == 0
    assert key(0) == 8147104208329303767
    assert key(1, 2, 3) == 3851293329796251419
    assert key(-1) == key(2**64 - 1)


@given(numbers, numbers)
def test_keys_differ_where_the_numbers_do(first, second):
    assert (key(*first) == key(*second)) == (first == second)


@given(numbers)
def test_torch_accepts_every_key(place):
    assert 0 <= key(*place) < 2**63
    torch.Generator().manual_seed(key(*place))


def test_keys_of_neighbors_differ_in_the_bits_that_torch_keeps():
    assert len({key(seed, epoch, i) & 0xFFFFFFFF for seed in (0, 1) for epoch in (0, 1) for i in range(1000)}) == 4000
