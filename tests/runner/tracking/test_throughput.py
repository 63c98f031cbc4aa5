"""Samples over wall time."""

import math
import time

import pytest

from pipetrain.runner.tracking.throughput import Throughput, WallClock


def test_throughput_of_steps_is_their_samples_over_their_time():
    made = Throughput(lambda step: [4, 4, 2][step % 3], [1.0, 3.0, 0.5, 0.5])
    assert made.of(0, 2) == 8 / 4
    assert made.of(2, 4) == (2 + 4) / 1
    assert (made.samples(0, 4), made.train_s(0, 4)) == (14, 5.0)


def test_throughput_of_a_run_leaves_out_the_first_tenth():
    assert Throughput(lambda _step: 1, [100.0, *[1.0] * 19]).of_run() == pytest.approx(18 / 18)
    assert Throughput(lambda _step: 1, [2.0]).of_run() == 0.5
    assert Throughput(lambda _step: 1).of_run() is None


def test_steps_of_unknown_time_count_on_neither_side():
    made = Throughput(lambda _step: 4)
    made.add(2, 1.0)
    made.prolong(1.0)
    assert made.seconds[2:] == [2.0]
    assert all(math.isnan(each) for each in made.seconds[:2])
    assert made.of(0, 3) == made.of_run() == 2.0
    assert made.of(0, 2) is None


def test_clock_goes_on_from_the_earlier_part_of_a_run():
    clock = WallClock({"wall_s": 100.0, "eval_s": 7.0})
    time.sleep(0.3)
    clock.start()
    clock.spend("eval_s", 0.5)
    clock.spend("checkpoint_s", 0.25)
    fields = clock.fields()
    assert 100.0 <= fields["wall_s"] < 100.3
    assert (fields["eval_s"], fields["checkpoint_s"]) == (7.5, 0.25)
