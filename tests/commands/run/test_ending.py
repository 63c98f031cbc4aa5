"""The messages of a run that ended early."""

import shlex
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

from pipetrain.commands.run.ending import command_to_continue
from pipetrain.runner.config.composition import overrides_of
from pipetrain.runner.tracking.run_directory import RunDirectory


@pytest.mark.parametrize("name", ["plain", "it's", "back\\'slash", "last\\"])
def test_command_to_continue_names_any_directory(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    hydra = OmegaConf.create({"overrides": {"task": ["method=gpipe", "resume=old"]}, "runtime": {}})
    job = SimpleNamespace(run=RunDirectory(tmp_path / name), resume=None)
    words = shlex.split(command_to_continue(job, hydra))
    assert words[:3] == ["pipetrain", "run", "method=gpipe"]
    assert [each.value() for each in overrides_of(words[3:])] == [name, "auto"]


def test_command_to_continue_keeps_the_resumed_checkpoint_until_the_run_has_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hydra = OmegaConf.create({"overrides": {"task": ["method=gpipe", "resume=the old"]}, "runtime": {}})
    resume = tmp_path / "the old" / "checkpoints" / "step-00000006"
    job = SimpleNamespace(run=RunDirectory(tmp_path / "new"), resume=resume)
    for expected in ("the old/checkpoints/step-00000006", "auto"):
        words = shlex.split(command_to_continue(job, hydra))
        assert [each.value() for each in overrides_of(words[3:])] == ["new", expected]
        job.run.checkpoint(8).mkdir(parents=True, exist_ok=True)
