"""Labels that can be had without decoding."""

from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import Subset, TensorDataset

from pipetrain.data.ranges import TokenRange, known_labels, label_of


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


def test_ids_of_the_vocabulary_pass():
    TokenRange("train", {1: 5}).check((IDS + 9, IDS), [0, 1])
