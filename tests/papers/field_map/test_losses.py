"""The reading of a loss against plain training's from few seeds."""

import math
import statistics
from pathlib import Path

import pytest

from papers.field_map.losses import Reading, maps_of, reading_of
from pipetrain.report.seed_statistics import ratio


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
def test_loss_is_read_by_the_whole_interval_of_its_ratio(losses, reading):
    plain = {("plain", 0): 1.0, ("plain", 1): 1.001, ("plain", 2): 1.002}
    assert reading_of(ratio(dict(enumerate(losses)), plain, statistics.median)) is reading


@pytest.mark.parametrize(
    ("network", "method", "depth", "low", "high", "reading"),
    [
        ("conv", "naive_async", 2, 0.45, 3.22, Reading.UNDECIDED),
        ("conv", "naive_async", 32, 0.81, 2.79, Reading.UNDECIDED),
        ("conv", "pipeoptim", 64, 1.07, 4.19, Reading.REFUTED),
        ("transformer", "naive_async", 2, 1.01, 1.08, Reading.UNDECIDED),
        ("transformer", "naive_async", 4, 1.06, 1.08, Reading.REFUTED),
        ("transformer", "lwp", 2, 1.01, 1.04, Reading.SUPPORTED),
        ("gpt", "naive_async", 8, 1.04, 1.08, Reading.UNDECIDED),
        ("gpt", "naive_async", 16, 1.08, 1.15, Reading.REFUTED),
        ("gpt", "pipeoptim", 4, 1.02, 1.05, Reading.SUPPORTED),
    ],
)
def test_readings_of_the_committed_runs(maps, network, method, depth, low, high, reading):
    found = maps[network].to_plain(method, depth)
    assert (round(found.low, 2), round(found.high, 2), reading_of(found)) == (low, high, reading)
