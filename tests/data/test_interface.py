import torch
from torch.utils.data import TensorDataset

from pipetrain.data.interface import DataSet, Split
from pipetrain.data.loader import Loader


class Described:
    ordered, reads_files = True, True
    targets = (1, 2)
    classes = ("cat", "dog")

    def target(self, index):
        return self.targets[index]


def test_optional_members_of_a_plain_data_set_have_their_defaults():
    split = Split(TensorDataset(torch.zeros(4, 2), torch.zeros(4)))
    assert (split.target, split.batches, split.collate, split.targets, split.classes) == (None,) * 5
    assert (split.stored, split.on_device, split.ordered, split.reads_files) == (None, None, False, False)
    data = DataSet(object())
    assert (data.padding, data.decoding, data.vocabulary_sha256, list(data.notes)) == (None, None, None, [])


def test_members_that_a_split_defines_are_its_own():
    split = Split(Described())
    assert (split.ordered, split.reads_files, split.targets, split.classes) == (True, True, (1, 2), ("cat", "dog"))
    assert split.target(1) == 2


def test_values_under_the_name_of_a_function_are_ignored():
    dataset = TensorDataset(torch.arange(4.0), torch.arange(4.0))
    dataset.batches, dataset.target, dataset.collate = 8, torch.zeros(4), True
    inputs, targets = next(Loader(dataset, batch_size=2, shuffle=False).samples(0))
    assert inputs[0].tolist() == targets[0].tolist() == [0, 1]
