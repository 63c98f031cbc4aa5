"""Labels that can be had without decoding."""

import re
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import Subset, TensorDataset

from pipetrain.data.fetch import Fetch
from pipetrain.data.ranges import LabelRange, TokenRange, known_labels, label_of
from pipetrain.engine.errors import ConfigError


class Decoding:
    """Three samples of the labels 2, 0, 1."""

    def __init__(self, **attributes):
        vars(self).update(attributes)

    def __len__(self):
        return 3

    def __getitem__(self, index):
        raise AssertionError("decoded")


@pytest.mark.parametrize(
    "split",
    [
        Decoding(targets=[2, 0, 1]),
        Decoding(targets=torch.tensor([2, 0, 1])),
        Decoding(target=[2, 0, 1].__getitem__),
        TensorDataset(torch.zeros(3, 2), torch.tensor([2, 0, 1])),
        Subset(Subset(Decoding(targets=[1, 0, 2]), [1, 0, 2]), [2, 0, 1]),
    ],
    ids=["list", "tensor", "function", "TensorDataset", "Subset"],
)
def test_labels_are_known_without_reading_samples(split):
    assert known_labels(split).tolist() == [2, 0, 1]


@pytest.mark.parametrize(
    "split",
    [
        Decoding(),
        Decoding(targets=[0, 1]),
        Decoding(targets=["cat", "dog", "cat"]),
        Decoding(targets=[0.5, 1.5, 2.5]),
        Subset(Decoding(), [0]),
        SimpleNamespace(targets=[0, 1]),
    ],
)
def test_labels_that_are_none_of_each_sample_are_unknown(split):
    assert known_labels(split) is None


def test_label_of_a_sample_is_what_reading_it_gives():
    assert label_of([(0, 3)], 0) == 3
    assert label_of(Decoding(target=[2, 0, 1].__getitem__), 1) == 0
    assert label_of([(0, 0.5)], 0) is None


IDS = torch.tensor([[0, 3, 1], [2, 4, 0]])


def test_label_out_of_range_is_named_and_not_the_ignored_one():
    labels = torch.tensor([[0, -100, 4], [9, -100, -100], [1, 2, -100]])
    with pytest.raises(ConfigError, match=r"sample 8 of `train` has the label 9, .* more outputs: model\.classes=10$"):
        LabelRange("train", 5, ignored=-100, setting="model.classes").check(labels, [7, 8, 9])
    LabelRange("train", 5, ignored=-100).check(labels[[0, 2]], [7, 9])


def test_ids_of_the_vocabulary_pass():
    TokenRange("train", {1: 5}).check((IDS + 9, IDS), [0, 1])


@pytest.mark.parametrize(
    ("ids", "known", "message"),
    [
        (
            IDS,
            None,
            "sample 8 of `eval` has the token id 4; the model's vocabulary has 4 tokens, 0 to 3; correct it, or",
        ),
        (IDS, 9, "0 to 3, and the data set's 9; correct it, or make a model for 9"),
        (-IDS, 9, "sample 7 of `eval` has the token id -3; .*, and the data set's 9; correct the id$"),
    ],
)
def test_id_without_row_is_named_with_sample_and_vocabularies(ids, known, message):
    tokens = TokenRange("eval", {0: 4}, known)
    with pytest.raises(ConfigError, match=re.compile(message)):
        tokens.check((ids,), [7, 8])


def test_ids_are_looked_at_when_a_minibatch_is_read():
    pairs = [(ids, 0) for ids in IDS]
    fetch = Fetch(pairs, 0, inputs=True, targets=True, tokens=TokenRange("train", {0: 4}))
    fetch(0, [0])
    with pytest.raises(ConfigError, match="sample 1 of `train` has the token id 4"):
        fetch(0, [0, 1])
