"""Settings read back from a run directory that may be another's, or damaged."""

import json
import os

import pytest

from pipetrain.config.composition import composed
from pipetrain.config.overrides import parse_overrides
from pipetrain.errors import ConfigError
from pipetrain.tracking.run_directory import RunDirectory
from pipetrain.tracking.stored_settings import stored_settings, values_set


@pytest.fixture
def run(tmp_path):
    made = RunDirectory(tmp_path)
    made.config.write_text(json.dumps(composed(["model=lenet5"]).stored))
    return made


def rewrite(run, setting, value):
    config = json.loads(run.config.read_text())
    section, key = setting.split(".")
    config[section][key] = value
    run.config.write_text(json.dumps(config))


def test_settings_are_those_of_the_run_with_changes_on_top(run):
    assert stored_settings(run, ("model",)).stored == composed(["model=lenet5"]).stored
    changed = stored_settings(run, ("dataset",), parse_overrides(["dataset=mnist", "dataset.limit=4"]))
    assert (changed.choices["dataset"], changed.dataset.limit) == ("mnist", 4)


def test_foreign_targets_are_called_only_if_trusted_or_requested(run):
    rewrite(run, "model._target_", "mylib.build")
    with pytest.raises(ConfigError, match=f"{run.config}: model._target_=mylib.build is not pipetrain's own"):
        stored_settings(run, ("model",))
    assert stored_settings(run, ("dataset", "loss")).model.target.path == "mylib.build"
    assert stored_settings(run, ("model",), trust=True).model.target.path == "mylib.build"
    asked = stored_settings(run, ("model",), parse_overrides(["model._target_=mylib.other"]))
    assert asked.model.target.path == "mylib.other"


def test_interpolation_in_stored_file_is_refused(run, monkeypatch):
    monkeypatch.setenv("SECRET", "told")
    rewrite(run, "dataset.augment", "${oc.env:SECRET}")
    with pytest.raises(ConfigError) as caught:
        stored_settings(run, (), trust=True)
    assert str(caught.value).startswith(f"{run.config}: dataset.augment=${{oc.env:SECRET}}: the settings of a run are")
    assert os.environ["SECRET"] not in str(caught.value)


@pytest.mark.parametrize(
    "content", [b"\x00\xff", b"a: [", b"- 1\n- 2", b"", b"text", b"{}", b"train: 3", b"train: {epochs: many}"]
)
def test_damaged_file_is_refused_by_name_in_one_line(run, content):
    run.config.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        stored_settings(run, ())
    assert str(run.config) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_choice_that_lacks_its_target_says_what_to_set(run):
    with pytest.raises(ConfigError, match=r"^dataset=custom: dataset._target_ is not set; name your function or class"):
        stored_settings(run, ("dataset",), parse_overrides(["dataset=custom"]))


def test_folder_without_settings_is_no_run_directory(tmp_path):
    with pytest.raises(ConfigError, match=r"not a run directory \(it has no config.yaml\)"):
        stored_settings(RunDirectory(tmp_path), ())


def test_damaged_record_of_hydra_is_refused_by_name(run):
    run.hydra.mkdir()
    (run.hydra / "hydra.yaml").write_text("hydra: [")
    with pytest.raises(ConfigError, match=f"{run.hydra}/hydra.yaml: damaged"):
        stored_settings(run, ())


CONFIG = {
    "optimizer": {"_target_": "torch.optim.SGD", "lr": 0.1, "betas": [0.9, 0.99]},
    "train": {"epochs": 3, "max_steps": None, "recompute": False},
    "phases": [{"method": {"_target_": "m", "t1": True}, "steps": 5}],
}


def test_every_set_value_has_its_command_line_name():
    assert values_set(CONFIG, {"method": "gpipe", "experiment": "None"}) == {
        "method": "gpipe",
        "optimizer.lr": 0.1,
        "optimizer.betas": "[0.9, 0.99]",
        "train.epochs": 3,
        "train.recompute": False,
        "phases.0.method.t1": True,
        "phases.0.steps": 5,
    }
