"""Splits in what a target returns, and Hugging Face data sets among them."""

from types import SimpleNamespace

import pytest
import torch
from support.hugging_face import Column, Standing, real, stand_in

from pipetrain.data.fetch import Fetch
from pipetrain.data.samples import NamedSamples
from pipetrain.data.splits import data_object
from pipetrain.engine.errors import ConfigError


@pytest.mark.parametrize(
    ("splits", "note"),
    [
        ({"train": 1, "test": 2}, "evaluates on `test`"),
        ({"test": 3, "train": 1, "validation": 2}, "evaluates on `validation`; unused: test"),
        ({"train": 1, "dev": 3, "eval": 2}, "evaluates on `eval`; unused: dev"),
    ],
)
def test_mapping_of_splits_is_a_data_object(splits, note):
    made = data_object(splits)
    assert (made.train, made.eval) == (1, 2)
    assert made.notes == [f"dataset: trains on the split `train` and {note}"]


def test_pair_and_object_are_data_objects():
    made = data_object(([1], [2]))
    assert (made.train, made.eval) == ([1], [2])
    own = SimpleNamespace(train=1, eval=2)
    assert data_object(own) is own


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ({"train": 1, "unsupervised": 2}, "a dict of train, unsupervised, without a split to evaluate on; it needs"),
        ({"test": 1}, "a dict of test, without the split `train`"),
        (3, "returned a int without `train`; a data set has map-style"),
        (SimpleNamespace(train=1), "returned a SimpleNamespace without `eval`"),
    ],
)
def test_missing_split_is_named_with_what_works(returned, message):
    with pytest.raises(ConfigError, match=message):
        data_object(returned)


@pytest.mark.parametrize("make", [stand_in, real])
def test_hugging_face_splits_are_tensors_with_classes(make):
    splits = make()
    split = NamedSamples(splits["train"], "label")
    image, label = split[3]
    assert image.shape == (1, 8, 8)
    assert (int(label), split.classes) == (Standing(22).labels[3], Column().names)
    assert NamedSamples(splits["train"].with_format("numpy"), "label")[0][0].__class__ is not torch.Tensor


def test_unusable_value_is_named_with_the_keys_that_work():
    split = NamedSamples([{"text": "a", "ids": [1, 2], "mask": torch.ones(2), "y": 0}], "y")
    with pytest.raises(ConfigError, match=r"dict\[text: str, .*; dataset\.input_key=\[ids,mask\] takes these alone"):
        Fetch(split, 0, inputs=True, targets=False)(0, [0])


def test_long_lists_are_described_once():
    split = [({"x": [[0.0] * 9] * 8, "y": "text"}, 0)]
    with pytest.raises(ConfigError, match=r"x: list\[8 x list\[9 x float\]\]"):
        Fetch(split, 0, inputs=True, targets=False)(0, [0])
