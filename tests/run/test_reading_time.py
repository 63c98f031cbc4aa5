"""How long data is read."""

import time

import pytest

from pipetrain.planner.profile.profile import LoaderTime
from pipetrain.run.reading_time import measured_reading


class Slow:
    """A loader whose inputs take a while, the first of them longer."""

    workers = 0

    def __len__(self):
        return 3

    def inputs(self, _epoch, first, last):
        for number in range(first, last):
            time.sleep(0.01 if number else 0.2)
            yield ()

    def targets(self, _epoch, first, last):
        return iter([()] * (last - first))


@pytest.mark.parametrize("repeats", [1, 9])
def test_inputs_and_targets_take_their_median_behind_the_first(repeats):
    found = measured_reading(Slow(), repeats)
    assert 0.01 <= found.inputs_s < 0.2
    assert 0 < found.targets_s < 0.01


def test_processes_that_read_ahead_take_the_stages_no_time():
    loader = Slow()
    loader.workers = 2
    assert measured_reading(loader, 1) == LoaderTime()
