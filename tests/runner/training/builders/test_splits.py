"""Runs on splits in what a target returns."""

import numpy as np
import pytest
import torch
from support.worker_pool import distributed, job, simulated


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


@pytest.mark.slow
@pytest.mark.parametrize("make", [stand_in, real])
def test_both_executors_train_on_a_dict_of_splits(tmp_path, make):
    make()  # skips without the library
    dataset = {"_target_": f"{__name__}.{make.__name__}", "target_key": "label"}
    model = {"_target_": "support.small_model.build", "channels": 1}
    # a process that this one forks may wait for a lock that another thread of the tests held
    jobs = [
        job(tmp_path / name, "pipedream", 2, dataset={**dataset, "workers": workers}, model=model)
        for name, workers in (("sim", 0), ("dist", 1))
    ]
    one, (other,) = simulated(jobs[0]), distributed(jobs[1:])
    assert one["loss_sha256"] == other["loss_sha256"]
    assert one["weights_sha256"] == other["weights_sha256"]
    assert one["steps"] == 12
