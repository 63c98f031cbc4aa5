import pytest

from pipetrain.run.link_speed import measured_bytes_per_s


@pytest.mark.slow
def test_two_workers_send_each_other_megabytes_a_second():
    assert 1e6 < measured_bytes_per_s("cpu") < 1e12
