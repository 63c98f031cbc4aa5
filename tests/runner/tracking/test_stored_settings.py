"""Settings read back from a run directory that may be another's, or damaged, with changes on top."""

import json
import os

import pytest
from hydra.errors import HydraException
from omegaconf import OmegaConf
from support.refusals import assert_refused

from pipetrain.engine.errors import ConfigError
from pipetrain.runner.config.composition import composed
from pipetrain.runner.tracking.run_directory import RunDirectory
from pipetrain.runner.tracking.stored_settings import check_targets, parse_overrides, stored_settings, values_set


@pytest.fixture
def config():
    made = OmegaConf.create({"dataset": {"_target_": "x", "root": "data", "limit": 5, "size": [1, 2]}, "seed": 0})
    OmegaConf.set_struct(made, value=True)
    return made


def changed(config, *words):
    for override in parse_overrides(words):
        override.apply(config)
    return config


def test_values_take_the_place_of_those_before(config):
    changed(config, "dataset.root=/data", "dataset.size=[3,4]", "seed=2", "+dataset.new={a: 1}")
    assert config.dataset == {"_target_": "x", "root": "/data", "limit": 5, "size": [3, 4], "new": {"a": 1}}
    assert config.seed == 2


def test_choice_of_a_group_takes_the_place_of_the_whole_section(config):
    changed(config, "dataset=mnist", "dataset.root=/data")
    assert config.dataset._target_ == "pipetrain.zoo.data.images.mnist_cifar.mnist"
    assert (config.dataset.root, config.dataset.limit, config.dataset.shuffle) == ("/data", None, True)


def test_choice_has_what_the_model_of_the_run_changes_of_it():
    config = OmegaConf.create({"optimizer": {}})
    (override,) = parse_overrides(["optimizer=sgdm"])
    override.apply(config, "alexnet")
    assert (config.optimizer.lr, config.optimizer.momentum) == (0.01, 0.9)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("dataset=nope", "no such dataset; choose from .*cifar10, .*mnist"),
        ("dataset=minst", "no such dataset; did you mean mnist"),
        ("dataset.rooot=6", "no such setting; did you mean dataset.root"),
        ("dataset.evil=6", "not a setting of the chosen dataset|no such setting"),
        ("dataset.root=a,b", "must set one setting to one value"),
        ("~dataset.root", "must set one setting to one value"),
    ],
)
def test_change_that_cannot_be_made_is_refused_in_its_own_words(config, word, message):
    assert_refused(f"^{word}: ({message})", changed, config, word)
    with pytest.raises(HydraException):
        parse_overrides(["dataset"])


OWN = {
    "dataset": {"_target_": "pipetrain.zoo.data.images.mnist_cifar.fashion_mnist_mini"},
    "model": {"_target_": "pipetrain.zoo.models.small_images.lenet5"},
    "loss": {"_target_": "torch.nn.CrossEntropyLoss"},
    "metrics": {"f1": {"_target_": "torchmetrics.classification.MulticlassF1Score", "num_classes": 2}},
    "optimizer": {"_target_": "os.system"},
    "phases": [{"method": {"_target_": "pipetrain.engine.methods.lwp.LinearWeightPrediction"}}, {}],
}
SECTIONS = ("dataset", "model", "loss", "metrics", "phases")


@pytest.mark.parametrize(
    ("change", "setting", "path"),
    [
        ({"model": {"_target_": "mylib.build"}}, "model._target_", "mylib.build"),
        ({"dataset": {"_target_": "torch.load"}}, "dataset._target_", "torch.load"),
        # a path below the package may lead out of it again
        ({"loss": {"_target_": "pipetrain.engine.seeding.sys"}}, "loss._target_", "pipetrain.engine.seeding.sys"),
        ({"model": {"_target_": "pipetrain.cli.main"}}, "model._target_", "pipetrain.cli.main"),
        ({"loss": {"_target_": "torch.nn.Module"}}, "loss._target_", "torch.nn.Module"),
        ({"metrics": {"f1": {"_target_": "mylib.F1"}}}, "metrics.f1._target_", "mylib.F1"),
        ({"metrics": {"f1": {"_target_": "torchmetrics.Metric"}}}, "metrics.f1._target_", "torchmetrics.Metric"),
        ({"model": {**OWN["model"], "size": {"_target_": "x.y"}}}, "model.size._target_", "x.y"),
        ({"model": {**OWN["model"], "size": [0, {"_target_": "x.y"}]}}, "model.size[1]._target_", "x.y"),
        ({"phases": [{}, {"schedule": {"_target_": "mylib.S"}}]}, "phases[1].schedule._target_", "mylib.S"),
    ],
)  # fmt: skip
def test_untrusted_target_is_named_with_allowing_flag(change, setting, path):
    with pytest.raises(ConfigError) as caught:
        check_targets({**OWN, **change}, SECTIONS, asked=(), where="config.yaml")
    assert str(caught.value).startswith(f"config.yaml: {setting}={path} is not pipetrain's own code")
    assert "--trust" in str(caught.value)
    check_targets({**OWN, **change}, SECTIONS, asked=(path,), where="config.yaml")


@pytest.fixture(scope="module")
def stored():
    return composed(["model=lenet5"]).stored


@pytest.fixture
def run(tmp_path, stored):
    made = RunDirectory(tmp_path)
    made.config.write_text(json.dumps(stored))
    return made


def rewrite(run, setting, value):
    config = json.loads(run.config.read_text())
    section, key = setting.split(".")
    config[section][key] = value
    run.config.write_text(json.dumps(config))


def test_settings_are_those_of_the_run_with_changes_on_top(run, stored):
    assert stored_settings(run, ("model",)).stored == stored
    words = ["dataset.limit=4", "dataset=mnist"]
    changed, reversed_ = (stored_settings(run, ("dataset",), parse_overrides(given)) for given in (words[::-1], words))
    assert changed.stored == reversed_.stored
    assert (changed.choices["dataset"], changed.dataset.limit) == ("mnist", 4)


def test_foreign_targets_are_called_only_if_trusted_or_requested(run):
    rewrite(run, "model._target_", "mylib.build")
    assert_refused(f"{run.config}: model._target_=mylib.build is not pipetrain's own", stored_settings, run, ("model",))
    assert stored_settings(run, ("dataset", "loss")).model.target.path == "mylib.build"
    assert stored_settings(run, ("model",), trust=True).model.target.path == "mylib.build"
    asked = stored_settings(run, ("model",), parse_overrides(["model._target_=mylib.other"]))
    assert asked.model.target.path == "mylib.other"


@pytest.mark.parametrize("value", [True, "yes", 1])
def test_only_a_change_makes_a_data_set_download(run, value):
    rewrite(run, "dataset.download", value)
    rewrite(run, "dataset.parts", [{"download": value, "root": "r"}])
    options = stored_settings(run, ()).dataset.target.options
    assert (options["download"], options["parts"]) == (False, [{"download": False, "root": "r"}])
    asked = stored_settings(run, (), parse_overrides(["dataset.download=true"])).dataset.target.options
    assert (asked["download"], asked["parts"][0]["download"]) == (True, False)


def test_interpolation_in_stored_file_is_refused(run, monkeypatch):
    monkeypatch.setenv("SECRET", "told")
    rewrite(run, "dataset.augment", "${oc.env:SECRET}")
    with pytest.raises(ConfigError) as caught:
        stored_settings(run, (), trust=True)
    assert str(caught.value).startswith(
        f"{run.config}: dataset.augment=${{oc.env:SECRET}}: must be a value, not an interpolation"
    )
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
    with pytest.raises(ConfigError, match=r"^dataset=custom: dataset._target_ is not set"):
        stored_settings(run, ("dataset",), parse_overrides(["dataset=custom"]))


def test_missing_settings_or_a_damaged_record_are_named(run, tmp_path):
    assert_refused(r"not a run directory", stored_settings, RunDirectory(tmp_path / "none"), ())
    run.hydra.mkdir()
    (run.hydra / "hydra.yaml").write_text("hydra: [")
    assert_refused(f"{run.hydra}/hydra.yaml: damaged", stored_settings, run, ())


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
