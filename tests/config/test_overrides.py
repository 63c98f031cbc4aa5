"""Changes of a configuration that is there already."""

import pytest
from hydra.errors import HydraException
from omegaconf import OmegaConf

from pipetrain.config.overrides import parse_overrides
from pipetrain.errors import ConfigError


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
    assert config.dataset._target_ == "pipetrain.data.images.mnist_cifar.mnist"
    assert (config.dataset.root, config.dataset.limit, config.dataset.shuffle) == ("/data", None, True)


def test_choice_has_what_the_model_of_the_run_changes_of_it():
    config = OmegaConf.create({"optimizer": {}})
    (override,) = parse_overrides(["optimizer=sgdm"])
    override.apply(config, "alexnet")
    assert (config.optimizer.lr, config.optimizer.momentum) == (0.01, 0.9)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("dataset=nope", "dataset=nope: no such dataset; choose from .*cifar10, .*mnist"),
        ("dataset=minst", "dataset=minst: no such dataset; did you mean mnist"),
        ("dataset.rooot=6", "dataset.rooot=6: no such setting; did you mean dataset.root"),
        ("dataset.evil=6", "dataset.evil=6: not a setting of the chosen dataset|dataset.evil=6: no such setting"),
        ("dataset.root=a,b", "dataset.root=a,b: one value for one setting"),
        ("~dataset.root", "~dataset.root: one value for one setting"),
    ],
)
def test_change_that_cannot_be_made_is_refused_in_its_own_words(config, word, message):
    with pytest.raises(ConfigError, match=message):
        changed(config, word)


def test_word_that_is_no_setting_is_an_error_of_the_grammar():
    with pytest.raises(HydraException):
        parse_overrides(["dataset"])


def test_targets_on_the_command_line_are_known():
    (own, other) = parse_overrides(["model._target_=mylib.build", "seed=1"])
    assert (list(own.targets), list(other.targets)) == (["mylib.build"], [])
