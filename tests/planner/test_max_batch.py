"""The largest minibatch that fits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipetrain.planner.max_batch import growth_between, largest_batch


@given(limit=st.integers(0, 300), step=st.integers(1, 7))
def test_largest_batch_is_largest_fitting_multiple(limit, step):
    assert largest_batch(lambda samples: samples <= limit, step, most=256) == min(limit, 256) // step * step


def test_growth_passes_two_measurements_and_keeps_fixed_memory():
    assert growth_between((4, 140.0), (8, 180.0)) == (100.0, 10.0)


@pytest.mark.parametrize("more", [100.0, 90.0])
def test_growth_never_falls(more):
    assert growth_between((4, 100.0), (8, more))[1] == 0.0


def test_largest_batch_to_a_share_is_found_in_fewer_trials():
    tried = []

    def fits(samples):
        tried.append(samples)
        return samples <= 1000

    found = largest_batch(fits, 4, share=1 / 16)
    assert 1000 * 15 / 16 - 4 <= found <= 1000
    assert found % 4 == 0
    assert len(tried) <= 14
