"""The reading of a loss against plain training's from few seeds."""

import math
from pathlib import Path

import pytest

from papers.field_map.losses import Reading, likeness, maps_of


@pytest.fixture(scope="module")
def maps():
    return {each.network: each for each in maps_of(Path(__file__).parents[3] / "results")}


@pytest.mark.parametrize(
    ("losses", "reading"),
    [
        ((1.01, 1.02, 1.03), Reading.SUPPORTED),
        ((1.02, 1.05, 1.08), Reading.UNDECIDED),
        ((1.2, 1.21, 1.22), Reading.REFUTED),
        ((1.06, 1.5, 4.0), Reading.UNDECIDED),
        ((math.inf, math.inf, math.inf), Reading.REFUTED),
        ((1.0, 1.0, math.inf), Reading.UNDECIDED),
        ((1.0,), Reading.UNDECIDED),
        ((math.inf,), Reading.UNDECIDED),
    ],
)
def test_bootstrap_and_t_interval_have_to_agree(losses, reading):
    assert likeness(losses, (1.0, 1.001, 1.002)).reading is reading


def test_interval_is_that_of_all_resamples():
    # of 27 resamples of three values 7 have the least as their median, 13 the middle one and 7 the largest
    found = likeness((2.0, 3.0, 4.0), (1.0, 1.0, 1.0))
    assert (found.low, found.high) == (2.0, 4.0)


@pytest.mark.parametrize(
    ("network", "method", "depth", "low", "high", "reading"),
    [
        ("conv", "naive_async", 2, 0.66, 2.43, Reading.UNDECIDED),
        ("conv", "naive_async", 32, 1.11, 1.80, Reading.UNDECIDED),
        ("conv", "pipeoptim", 64, 1.29, 3.61, Reading.REFUTED),
        ("transformer", "naive_async", 2, 1.02, 1.06, Reading.UNDECIDED),
        ("transformer", "naive_async", 4, 1.06, 1.08, Reading.REFUTED),
        ("transformer", "lwp", 2, 1.01, 1.03, Reading.SUPPORTED),
        ("gpt", "naive_async", 8, 1.05, 1.08, Reading.UNDECIDED),
        ("gpt", "naive_async", 16, 1.10, 1.14, Reading.REFUTED),
        ("gpt", "pipeoptim", 4, 1.03, 1.04, Reading.SUPPORTED),
    ],
)
def test_readings_of_the_committed_runs(maps, network, method, depth, low, high, reading):
    found = maps[network].likeness(method, depth)
    assert (round(found.low, 2), round(found.high, 2), found.reading) == (low, high, reading)
