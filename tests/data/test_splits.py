"""Splits in what a target returns, and Hugging Face data sets among them."""

from types import SimpleNamespace

import pytest
import torch
from support.hugging_face import Column, Standing, real, stand_in

from pipetrain.data.samples import NamedSamples
from pipetrain.data.splits import data_object


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


@pytest.mark.parametrize("make", [stand_in, real])
def test_hugging_face_splits_are_tensors_with_classes(make):
    splits = make()
    split = NamedSamples(splits["train"], "label")
    image, label = split[3]
    assert image.shape == (1, 8, 8)
    assert (int(label), split.classes) == (Standing(22).labels[3], Column().names)
    assert NamedSamples(splits["train"].with_format("numpy"), "label")[0][0].__class__ is not torch.Tensor
