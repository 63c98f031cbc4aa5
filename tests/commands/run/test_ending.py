"""The messages of a run that ended early."""

import shlex

import pytest
from omegaconf import OmegaConf

from pipetrain.commands.run.ending import command_to_continue
from pipetrain.config.composition import overrides_of
from pipetrain.tracking.run_directory import RunDirectory


@pytest.mark.parametrize("name", ["plain", "it's", "back\\'slash", "last\\"])
def test_command_to_continue_names_any_directory(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    hydra = OmegaConf.create({"overrides": {"task": ["method=gpipe", "resume=old"]}, "runtime": {}})
    words = shlex.split(command_to_continue(RunDirectory(tmp_path / name), hydra))
    assert words[:3] == ["pipetrain", "run", "method=gpipe"]
    assert [each.value() for each in overrides_of(words[3:])] == [name, "auto"]
