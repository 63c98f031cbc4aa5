"""What is said of a configuration that Hydra or OmegaConf refuses."""

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from pipetrain.runner.config.hydra_errors import CONFIGURATION_ERRORS, explained
from pipetrain.runner.config.schema import config_dir, register_schema


def refusal(*overrides):
    """What is said of these overrides."""
    register_schema()
    with (
        initialize_config_dir(str(config_dir()), version_base="1.3"),
        pytest.raises(CONFIGURATION_ERRORS) as caught,
    ):
        OmegaConf.to_container(compose("config", list(overrides)), resolve=True, throw_on_missing=True)
    return explained(caught.value)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("lr=0.1", "lr=0.1: no such setting; did you mean optimizer.lr?"),
        ("train.eopchs=3", "train.eopchs=3: no such setting; did you mean train.epochs?"),
        ("~nope", "nope: no such setting; `pipetrain run --help` lists them"),
        ("method=pipoptim", "method=pipoptim: no such method; did you mean pipeoptim?"),
        (
            "loss=mse",
            "loss=mse: no such loss; choose from cross_entropy, token_cross_entropy; your own: loss=custom "
            "loss._target_=mylib.Thing",
        ),
        (
            "experiment=map",
            "experiment=map: a folder of presets; choose from map/conv, map/gpt, map/transformer",
        ),
        (
            "experiment=map/transfomer",
            "experiment=map/transfomer: no such experiment; did you mean map/transformer?",
        ),
        (
            "experiment=none",
            "experiment=none: no such experiment; choose from asyncpp/, basis_rotation/, comparison, demo, map/, "
            "multi30k, one_step_delay/, paci/, pipedream/, pipemare/, pipeoptim/, slowdown/, timeprest/, zhang/; "
            "pipetrain list experiments describes all",
        ),
        (
            "hydra/launcher=ray",
            "hydra/launcher=ray is not installed; it may come with: pip install hydra-ray-launcher",
        ),
        ("train.epochs", "train.epochs: takes a value, such as train.epochs=10: Passes over the training set."),
        ("method", "method: takes a choice, method=NAME; `pipetrain list method` describes them"),
        ("nothing", "nothing: neither a setting, NAME=VALUE, nor a choice, GROUP=CHOICE"),
        (
            "gpipe",
            "gpipe: neither a setting, NAME=VALUE, nor a choice, GROUP=CHOICE; did you mean schedule=gpipe or "
            "method=gpipe?",
        ),
        (
            "train.target={top1:",
            "train.target={top1:: cannot be read; quote a value with special characters: 'name=\"a, b\"'",
        ),
        ("train.epochs=abc", "train.epochs=abc: a whole number is needed"),
        ("launch.hang_timeout=soon", "launch.hang_timeout=soon: a number is needed"),
        ("train.epochs=null", "train.epochs=null: a value is needed"),
        ("trace=maybe", "trace=maybe: true or false is needed"),
        ("train=3", "train=3: is a section, whose settings are given one by one: train.NAME=VALUE"),
        ("topology.workers=4", "topology.workers=4: a list is needed, in brackets, such as [2]"),
        ("~train.epochs=10", "~train.epochs: cannot be left out; give it a value: train.epochs=VALUE"),
        ("seed.x=1", "seed: has a value and no settings of its own; seed=VALUE"),
        (
            "optimizer=sgdm,adam",
            "optimizer=sgdm,adam: several values; --multirun makes a run of each, and in brackets they are one list",
        ),
        ("+seed=1", "+seed: is a setting already; leave out the +"),
        ("+model=lenet5", "+model: is chosen already; leave out the +"),
        ("seed=${nope}", "seed=${nope}: there is no nope to take it from"),
        (
            "dataset=custom",
            "dataset._target_ is not set; name your function or class: dataset._target_=mylib.Thing",
        ),
    ],
)
def test_refusal_names_the_setting_and_what_would_work(override, message):
    assert refusal(override) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train: {eopchs: 3}", "experiment/mine.yaml: train.eopchs: no such setting; did you mean train.epochs?"),
        ("train: {epochs: many}", "experiment/mine.yaml: train.epochs=many: a whole number is needed"),
        ("defaults: [override /methd: lwp]", "experiment/mine.yaml: methd: no such setting; did you mean method?"),
        ("train: [1", "mine.yaml, line 3: expected ',' or ']', but got '<stream end>'"),
    ],
)
def test_refusal_of_a_users_file_names_it(tmp_path, text, message):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(f"# @package _global_\n{text}\n")
    assert refusal("experiment=mine", f"hydra.searchpath=[file://{tmp_path}]").endswith(message)
