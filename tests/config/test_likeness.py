"""Names that are like a misspelt one."""

import pytest

from pipetrain.config.likeness import did_you_mean, nearest

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
    assert nearest(name, KNOWN) == found


def test_capitals_make_no_difference():
    assert did_you_mean("SGD", ["adam", "sgdm", "sgd"]) == "; did you mean sgd?"


def test_question_names_the_likest_first_or_is_empty():
    known = ["train.batch_size", "eval.batch_size"]
    assert did_you_mean("batch_size", known) == "; did you mean train.batch_size or eval.batch_size?"
    assert did_you_mean("precision", known) == ""
