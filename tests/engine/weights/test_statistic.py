"""The running average of updates: its formula, and its state."""

from functools import partial

import torch

from pipetrain.engine.weights.statistic import LastChange, UpdateAverage

averaging = partial(UpdateAverage, 0.3)


def followed(make, steps):
    """The statistic after updates that add `steps` to a weight, one after the other."""
    weight = torch.zeros(3, dtype=torch.float64)
    average = make({"w": weight})
    for step in steps:
        average.follow({"w": weight}, {"w": weight + step})
        weight = weight + step
    return average


def test_update_average_follows_its_formula():
    expected = 0.0
    for step in (1.0, -2.0, 4.0):
        expected = 0.3 * expected + 0.7 * step
    torch.testing.assert_close(followed(averaging, [1.0, -2.0, 4.0]).average["w"], torch.full((3,), expected).double())


def test_last_change_is_that_of_the_last_update():
    assert followed(LastChange, []).average["w"].tolist() == [0.0] * 3
    assert followed(LastChange, [1.0, -2.0, 4.0]).average["w"].tolist() == [4.0] * 3
