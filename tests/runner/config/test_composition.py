"""What wins where a model, an experiment and the command line set the same."""

import shlex

import pytest
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from support.quick_cases import every

from pipetrain.runner.config.choices import (
    choices_of,
    group_overrides_of,
    names_of,
    section,
    section_overrides_of,
    tuned_file,
)
from pipetrain.runner.config.composition import Composition, combinations, composed, composed_one, overrides_of
from pipetrain.runner.config.reference import groups
from pipetrain.runner.config.schema import OPEN_SECTIONS, config_dir, schema
from pipetrain.runner.config.suggestions import known_names

MODEL = """\
# @package _global_
defaults:
  - override /dataset: synthetic_images
  - override /optimizer: adamw
  - override /loss: cross_entropy
  - override /lr_schedule: cosine
model:
  _target_: pipetrain.zoo.models.small_images.lenet5
train:
  batch_size: 8
  epochs: 3
"""
EXPERIMENT = """\
# @package _global_
defaults:
  - override /model: mine
  - override /optimizer: sgd
train:
  epochs: 4
"""


@pytest.fixture
def folder(tmp_path):
    files = {
        "model/mine.yaml": MODEL,
        "experiment/mine.yaml": EXPERIMENT,
        "tuned/mine-adamw.yaml": "lr: 0.003\n",
        "tuned/mine-synthetic_images.yaml": "size: 64\nlimit: 12\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def chosen(folder, *words):
    return composed([f"hydra.searchpath=[file://{folder}]", *words])


@pytest.mark.parametrize("name", ['back\\\'slash, "mine"', "last\\"])
def test_folder_of_choices_may_have_any_name(folder, name):
    named = folder / name
    named.mkdir()
    (folder / "model").rename(named / "model")
    assert composed_one(["model=mine"], named).choices["model"] == "mine"


def test_model_brings_choices_and_values(folder):
    settings = chosen(folder, "model=mine")
    assert {group: settings.choices[group] for group in ("dataset", "optimizer", "lr_schedule")} == {
        "dataset": "synthetic_images",
        "optimizer": "adamw",
        "lr_schedule": "cosine",
    }
    assert (settings.optimizer.lr, settings.dataset.target.options["size"], settings.dataset.limit) == (0.003, 64, 12)
    assert (settings.train.batch_size, settings.train.epochs) == (8, 3)
    assert set(settings.choices) == {*groups()}


def test_command_line_replaces_what_the_model_chooses_and_sets(folder):
    settings = chosen(folder, "dataset=mnist", "model=mine", "train.batch_size=5", "optimizer.lr=0.5")
    assert (settings.choices["dataset"], settings.dataset.limit) == ("mnist", None)
    assert (settings.choices["optimizer"], settings.optimizer.lr) == ("adamw", 0.5)
    assert (settings.train.batch_size, settings.train.epochs) == (5, 3)
    settings = chosen(folder, "model=mine", "optimizer=adam", "dataset.size=16")
    assert (settings.choices["optimizer"], settings.optimizer.lr) == ("adam", 0.001)
    assert settings.dataset.target.options["size"] == 16


def test_experiment_overrides_model_but_not_command_line(folder):
    settings = chosen(folder, "experiment=mine", "dataset=mnist")
    assert {group: settings.choices[group] for group in ("model", "dataset", "optimizer", "lr_schedule")} == {
        "model": "mine",
        "dataset": "mnist",
        "optimizer": "sgd",
        "lr_schedule": "cosine",
    }
    assert (settings.train.epochs, settings.train.batch_size) == (4, 8)


def test_each_run_of_model_sweep_has_its_model_settings(folder):
    swept = [chosen(folder, *words) for words in combinations(["model=lenet5,mine"])]
    assert [settings.choices["dataset"] for settings in swept] == ["fashion_mnist_mini", "synthetic_images"]
    assert [settings.train.batch_size for settings in swept] == [64, 8]


@pytest.mark.parametrize("words", [["seed=0,1", "method=gpipe,lwp", "seed=2,3"], ["seed=0,1", "seed=3"]])
def test_later_word_of_a_sweep_replaces_the_earlier_one(words):
    [commands] = BasicSweeper.split_arguments(overrides_of(words), None)
    assert sorted(map(sorted, combinations(words))) == sorted(map(sorted, commands))


def test_model_of_ones_own_brings_nothing():
    assert group_overrides_of("model", "custom") == {}
    assert not list((config_dir() / "tuned").glob("custom-*"))
    assert composed(["model=custom", "model._target_=mylib.build"]).choices == {
        **composed([]).choices,
        "model": "custom",
    }


def test_models_bring_what_there_is_to_choose():
    for name in names_of("model"):
        assert all(choice in names_of(group) for group, choice in group_overrides_of("model", name).items()), name
        for part, values in section_overrides_of("model", name).items():
            assert values.keys() <= schema()[part].keys(), name


def test_models_change_settings_that_the_choices_have():
    files = set((config_dir() / "tuned").iterdir())
    for group in ("dataset", "optimizer", "lr_schedule", "loss"):
        for choice in names_of(group):
            common = schema()[group].keys() if group in OPEN_SECTIONS else ()
            for path in [tuned_file(model, choice) for model in names_of("model")]:
                if path is not None:
                    keys = {line.split(":")[0] for line in path.read_text().splitlines() if line[0].isalpha()}
                    assert keys <= {*section(group, choice), *common}, path
                    files.remove(path)
    assert files == set(), "of no model and choice"


def test_model_paper_settings_name_existing_choices_and_settings():
    for choice in choices_of("model"):
        words = shlex.split(choice.remarks.get("paper", ""))
        for name, _, value in (word.partition("=") for word in words):
            assert value in names_of(name) if name in groups() else name in known_names(), (choice.name, name)


@pytest.mark.parametrize("choice", every(5, ["pipetrain", "default", "stdout", "none", "disabled"]))
def test_every_choice_of_hydras_logging_has_whole_handlers(choice):
    logging = Composition.of([f"hydra/job_logging={choice}"]).hydra.job_logging
    handlers = logging.get("handlers") or {}
    assert all("class" in each for each in handlers.values())
    assert {name for name in handlers if "filename" in handlers[name]} == {*handlers} & {"file"}
    assert ("file" in handlers) == (choice in ("pipetrain", "default"))
