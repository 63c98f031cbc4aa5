"""The settings that a run accepts."""

from dataclasses import fields

from omegaconf import OmegaConf

from pipetrain.runner.config.schema import CheckpointConfig, Config, config_dir, leaves, schema


def test_defaults_of_the_schema_are_those_of_the_command_line():
    file = OmegaConf.load(config_dir() / "config.yaml")
    assert {"schema", "_self_"} <= {each if isinstance(each, str) else "" for each in file.defaults}
    assert OmegaConf.to_object(schema()) == Config()
    assert Config().checkpoint == CheckpointConfig(
        at_start=False,
        every_epochs=1,
        every_steps=None,
        every_minutes=None,
        keep_last=None,
        keep_best=None,
        metric="loss",
    )


def test_every_open_group_has_a_folder_of_choices():
    groups = {field.name for field in fields(Config) if field.type == dict[str, object] or "dict[" in str(field.type)}
    assert groups
    assert all((config_dir() / group).is_dir() for group in groups), groups


NESTED = {"seed": 0, "optimizer": {"betas": [0.9, 0.99], "none": {}}, "phases": [{"steps": 3}, {"steps": None}]}


def test_leaves_have_command_line_names_and_lists_are_values():
    assert dict(leaves(NESTED)) == {"seed": 0, "optimizer.betas": [0.9, 0.99], "phases": NESTED["phases"]}


def test_list_entries_are_leaves_on_request():
    assert dict(leaves(NESTED["phases"], "phases", into_lists=True)) == {"phases[0].steps": 3, "phases[1].steps": None}
