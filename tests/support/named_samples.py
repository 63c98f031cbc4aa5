"""Data sets whose samples are dicts."""

from types import SimpleNamespace

import torch


class Dicts:
    """Two samples with a mask."""

    classes = 2

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return {"pixels": torch.full((3,), float(index)), "mask": torch.ones(3), "labels": index}


def build():
    return SimpleNamespace(train=Dicts(), eval=Dicts(), channels=1)
