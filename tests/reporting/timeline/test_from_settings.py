"""Times as they are given on the command line."""

import re

import pytest
from support.refusals import assert_refused

from pipetrain.engine.errors import ConfigError
from pipetrain.reporting.timeline.from_settings import GivenTimes


def test_one_number_is_for_all_stages_and_several_are_for_each():
    times = GivenTimes(forward=(1.0, 2.0, 3.0), backward=(4.0,), link=(0.5,)).times(3, 2)
    assert (times.forward, times.backward, times.latency) == ([1.0, 2.0, 3.0], [4.0] * 3, [0.5] * 2)
    assert times.recomputation == times.forward
    assert (times.update, times.transmission, times.num_microbatches) == ([0.0] * 3, [0.0] * 2, 2)
    assert GivenTimes(recomputation=(0.5,)).times(2, 1).recomputation == [0.5, 0.5]


def test_message_takes_its_bytes_over_the_bandwidth():
    times = GivenTimes(message_bytes=(1e6, 2e6), link_bandwidth=(1e7,)).times(3, 1)
    assert times.transmission == pytest.approx([0.1, 0.2])


def test_split_backward_gives_half_of_its_time_to_weights_unless_told():
    assert GivenTimes().times(2, 1).weight_gradient == []
    halves = GivenTimes(backward=(2.0, 3.0)).times(2, 1, split=True)
    assert (halves.backward, halves.weight_gradient) == ([1.0, 1.5], [1.0, 1.5])
    given = GivenTimes(backward=(2.0,), weight_gradient=(0.5,)).times(2, 1, split=True)
    assert (given.backward, given.weight_gradient) == ([1.5, 1.5], [0.5, 0.5])
    with pytest.raises(ConfigError, match=r"--weight-gradient-time 2: must be below --backward-time 2"):
        GivenTimes(weight_gradient=(2.0,)).times(2, 1, split=True)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            GivenTimes(forward=(1.0, 2.0)),
            "--forward-time 1,2: 2 numbers for 3 stages; give one for each, or one for all",
        ),
        (GivenTimes(link=(1.0, 2.0, 3.0)), "--link-time 1,2,3: 3 numbers for 2 links"),
        (GivenTimes(forward=(0.0,)), "--forward-time 0: must be above 0, and finite"),
        (GivenTimes(update=(-1.0,)), "--update-time -1: must be at least 0, and finite"),
        (GivenTimes(backward=(float("inf"),)), "--backward-time inf: must be above 0, and finite"),
        (GivenTimes(update=(float("nan"),)), "--update-time nan: must be at least 0, and finite"),
        (GivenTimes(message_bytes=(1.0,)), "--message-bytes and --link-bandwidth need each other"),
        (GivenTimes(message_bytes=(1.0,), link_bandwidth=(0.0,)), "--link-bandwidth 0: must be above 0, and finite"),
    ],
)
def test_times_that_make_no_sense_are_refused_by_their_option(given, message):
    assert_refused(re.escape(message), given.times, 3, 1)
