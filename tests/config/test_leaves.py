"""The values at the ends of a configuration."""

from pipetrain.config.leaves import leaves

CONFIG = {"seed": 0, "optimizer": {"betas": [0.9, 0.99], "none": {}}, "phases": [{"steps": 3}, {"steps": None}]}


def test_leaves_have_command_line_names_and_lists_are_values():
    assert dict(leaves(CONFIG)) == {"seed": 0, "optimizer.betas": [0.9, 0.99], "phases": CONFIG["phases"]}


def test_list_entries_are_leaves_on_request():
    assert dict(leaves(CONFIG["phases"], "phases", into_lists=True)) == {"phases[0].steps": 3, "phases[1].steps": None}
