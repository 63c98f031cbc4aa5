import pytest
from support.worker_pool import settings

from pipetrain.commands.chosen_profile import chosen_profile
from pipetrain.errors import ConfigError


def test_a_stored_profile_takes_the_place_of_a_measurement(tmp_path):
    stored = tmp_path / "graph.txt"
    stored.write_text(
        "node1 -- Input -- forward_compute_time=0, backward_compute_time=0, activation_size=4, parameter_size=0\n"
        "node2 -- Linear -- forward_compute_time=1, backward_compute_time=2, activation_size=8, parameter_size=16\n"
        "\tnode1 -- node2\n"
    )
    found = chosen_profile(settings("gpipe", profile=str(stored)))
    assert [layer.label for layer in found.layers][-1] == "Linear"


def test_a_profile_that_is_not_there_is_named():
    with pytest.raises(ConfigError, match=r"profile=none\.json: cannot be read"):
        chosen_profile(settings("gpipe", profile="none.json"))
