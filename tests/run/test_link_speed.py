import pytest

from pipetrain.errors import ConfigError
from pipetrain.planner.profile import MessageWork
from pipetrain.run.link_speed import LinkSpeed, measured_link


@pytest.mark.slow
def test_two_workers_send_each_other_megabytes_a_second_and_a_large_message_takes_more_of_their_cores():
    found = measured_link("cpu")
    assert 1e6 < found.bytes_per_s < 1e12
    assert 0 < found.message_work.seconds < 1
    assert 0 < found.message_work.seconds_per_byte < 1e-6


@pytest.mark.parametrize("content", [None, 1e9, {}, {"bytes_per_s": 0.0, "message_work": {}}, {"bytes_per_s": 1.0}])
def test_what_is_no_measured_link_is_refused(content):
    with pytest.raises(ConfigError):
        LinkSpeed.from_json(content)


def test_measured_link_is_read_as_it_was_stored():
    stored = {"bytes_per_s": 2e9, "message_work": {"seconds": 1e-4, "seconds_per_byte": 3e-10}}
    assert LinkSpeed.from_json(stored) == LinkSpeed(2e9, MessageWork(1e-4, 3e-10))
