"""Metrics with a state of their own, as one evaluation has them."""

import pytest
import torch
from torch import nn

from pipetrain.engine.losses import Metrics


class Exchanging(nn.Module):
    """Asks as torchmetrics do whether there are processes to exchange with, and on which device it is."""

    def __init__(self):
        super().__init__()
        self.register_buffer("state", torch.zeros(()))

    def update(self, *_tensors):
        assert self.state.is_meta

    def compute(self):
        return float(torch.distributed.is_initialized())


class Holder:
    """A metric of a user's own that is no module, and holds one that is."""

    def __init__(self, parts):
        self.parts = parts

    @property
    def inner(self):
        parts = self.parts
        return parts["a"] if isinstance(parts, dict) else parts[0] if isinstance(parts, list) else parts

    def update(self, *tensors):
        self.inner.update(*tensors)

    def compute(self):
        return self.inner.compute()


def held(kind):
    inner = Exchanging()
    parts = {"alone": None, "attribute": inner, "list": [inner], "dict": {"a": inner}}[kind]
    return inner if kind == "alone" else Holder(parts)


@pytest.mark.parametrize("kind", ["alone", "attribute", "list", "dict"])
def test_torchmetrics_are_on_device_and_do_not_communicate_between_stages(monkeypatch, kind):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    metrics = Metrics({"own": held(kind)})
    evaluated = metrics.begin()
    evaluated.update((torch.zeros(2, device="meta"), torch.zeros(2, device="meta")))
    assert evaluated.values() == {"own": 0.0}
    assert metrics.fresh["own"].compute() == 1.0
