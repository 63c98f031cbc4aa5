"""Splits as Hugging Face's data sets are: a stand-in, and real ones."""

import numpy as np
import pytest
import torch


class Column:
    """A feature that names its classes."""

    def __init__(self):
        self.names = ["a", "b", "c", "d"]


class Standing:
    """Samples in lists, with the protocol of `datasets.Dataset`, as far as it is used."""

    def __init__(self, samples, kind=None):
        self.features = {"image": None, "label": Column()}
        self.samples, self.format = samples, {"type": kind}
        draw = np.random.default_rng(samples)
        self.images = draw.normal(size=(samples, 1, 8, 8)).tolist()
        self.labels = draw.integers(0, 4, samples).tolist()

    def with_format(self, kind):
        return Standing(self.samples, kind)

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        image, label = self.images[index], self.labels[index]
        if self.format["type"] == "torch":
            image, label = torch.tensor(image), torch.tensor(label)
        return {"image": image, "label": label}


def stand_in():
    return {"train": Standing(22), "test": Standing(10)}


def real():
    datasets = pytest.importorskip("datasets")
    label = datasets.ClassLabel(names=Column().names)
    splits = {}
    for name, split in stand_in().items():
        made = datasets.Dataset.from_dict({"image": split.images, "label": split.labels})
        splits[name] = made.cast_column("label", label)
    return datasets.DatasetDict(splits)
