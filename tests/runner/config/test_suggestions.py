"""Names that are like a misspelt one."""

import pytest

from pipetrain.runner.config.suggestions import did_you_mean, known_names, nearest_names, unknown_setting

KNOWN = ["train.epochs", "train.max_steps", "optimizer.lr", "optimizer.momentum", "model", "eval.batch_size", "trace"]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("train.eopchs", ["train.epochs"]),
        ("trian.epochs", ["train.epochs"]),
        ("epochs", ["train.epochs"]),
        ("lr", ["optimizer.lr"]),
        ("train.lr", ["optimizer.lr"]),
        ("steps", ["train.max_steps"]),
        ("modle", ["model"]),
        ("optimizer.maximize", []),  # the same section alone makes no likeness
        ("amp", []),
        ("trace", []),  # itself
    ],
)
def test_nearest_names_are_like_in_their_last_part(name, found):
    assert nearest_names(name, KNOWN) == found


def test_capitals_make_no_difference():
    assert did_you_mean("SGD", ["adam", "sgdm", "sgd"]) == "; did you mean sgd?"


def test_question_names_the_likest_first_or_is_empty():
    known = ["train.batch_size", "eval.batch_size"]
    assert did_you_mean("batch_size", known) == "; did you mean train.batch_size or eval.batch_size?"
    assert did_you_mean("precision", known) == ""


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("lr=0.1", "did you mean optimizer.lr?"),
        ("optimizer.learning_rate=1", "did you mean optimizer.lr?"),
        ("dataset.num_workers=1", "did you mean dataset.workers?"),
        ("batch_size=1", "did you mean train.batch_size or eval.batch_size?"),
        ("methd=gpipe", "did you mean method?"),
        ("amp=true", "`pipetrain run --help` lists them"),
        ("hydra.foo=1", "`pipetrain run --hydra-help` lists them"),
        ("method.decay=1", "it is one of method=pipemare, method=pipemare_w"),
        ("model.thickness=8", "if its target takes it, write +model.thickness=8"),
    ],
)
def test_unknown_setting_is_answered_with_what_was_meant(given, hint):
    said = unknown_setting(given.partition("=")[0], given)
    assert said.startswith(f"{given}: ")
    assert said.endswith(f"; {hint}")


def test_settings_of_runs_groups_and_choices_are_known():
    assert {"train.epochs", "dataset.limit", "seed", "experiment", "checkpoint", "method.decay"} <= set(known_names())
