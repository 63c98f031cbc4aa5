"""What is said of every setting."""

from dataclasses import fields, is_dataclass

from pipetrain.runner.config.choices import choices_of
from pipetrain.runner.config.reference import Setting, groups, sections, settings_of_choice
from pipetrain.runner.config.schema import Config, config_dir


def defaults(section, prefix=""):
    """Names and defaults of the settings below a section of the schema; the executor's only one is a choice."""
    for field in fields(section):
        value = getattr(section, field.name)
        if is_dataclass(value) and field.name != "executor":
            yield from defaults(value, f"{field.name}.")
        elif isinstance(value, dict) and (config_dir() / field.name).is_dir():
            yield from ((f"{field.name}.{name}", default) for name, default in value.items())
        elif field.name != "executor":
            yield f"{prefix}{field.name}", value["name"] if prefix == "messages." and isinstance(value, dict) else value


def test_every_schema_setting_is_listed_with_default_and_meaning():
    listed = [setting for section in sections() for setting in section.settings]
    assert {setting.name: setting.default for setting in listed} == dict(defaults(Config()))
    assert [setting.name for setting in listed if not setting.meaning.endswith(".")] == []
    assert all(section.meaning for section in sections())


def test_every_folder_of_choices_is_a_group_with_a_meaning():
    assert {*groups(), "tuned", "hydra", "message"} == {path.name for path in config_dir().iterdir() if path.is_dir()}
    assert all(groups().values())


def test_settings_of_a_choice_have_the_comments_of_its_file():
    assert list(settings_of_choice("loss", "cross_entropy")) == [
        Setting("loss.label_smoothing", 0.0, "share of the target spread over all classes, 0 to 1"),
        Setting(
            "loss.auxiliary",
            0.3,
            "weight of the loss of each auxiliary head, such as GoogLeNet's with model.auxiliary=true",
        ),
    ]
    assert list(settings_of_choice("method", "gpipe")) == []


def test_model_changed_settings_show_model_values_and_comments():
    found = {setting.name: setting for setting in settings_of_choice("optimizer", "sgdm", "alexnet")}
    assert (found["optimizer.lr"].default, found["optimizer.momentum"].default) == (0.01, 0.9)
    assert found["optimizer.lr"].meaning.startswith("as Krizhevsky's")


def test_settings_of_a_preset_of_phases_are_those_of_its_group():
    found = {setting.name: setting for setting in settings_of_choice("method", "pipemare_w")}
    assert found.keys() == {f"method.{name}" for name in ("warm_up_epochs", "t1", "t2", "anneal_steps", "decay")}
    assert found["method.anneal_steps"].meaning.startswith("K of T1")


def test_every_choice_setting_has_a_meaning():
    settings = (
        setting
        for group in groups()
        if group != "experiment"
        for choice in choices_of(group)
        for setting in settings_of_choice(group, choice.name)
    )
    assert {setting.name for setting in settings if not setting.meaning} <= {"model.depth", "executor.name"}
