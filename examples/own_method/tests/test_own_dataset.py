"""The samples of own_dataset, against samples written by hand."""

import torch

from own_method.dataset import OwnDataset


def test_samples_without_noise_are_bright_rows() -> None:
    train = OwnDataset(classes=2, size=4, noise=0.0, samples=3).train
    first = torch.tensor([[[1.0] * 4, [0.0] * 4, [0.0] * 4, [0.0] * 4]])
    second = torch.tensor([[[0.0] * 4, [0.0] * 4, [1.0] * 4, [0.0] * 4]])
    assert len(train) == 3
    for index, (image, label) in enumerate([(first, 0), (second, 1), (first, 0)]):
        assert torch.equal(train[index][0], image)
        assert train[index][1] == label


def test_noise_is_the_same_each_time_and_differs_between_splits() -> None:
    found = OwnDataset()
    assert torch.equal(found.train[13][0], OwnDataset().train[13][0])
    assert not torch.equal(found.train[13][0], found.eval[13][0])
