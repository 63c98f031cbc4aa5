"""Metrics with a state of their own, as one evaluation has them."""

import torch
from torch import nn

from pipetrain.losses import Metrics


class Exchanging(nn.Module):
    """Computes as torchmetrics do whether its processes would exchange what they have."""

    def __init__(self):
        super().__init__()
        self.distributed_available_fn = lambda: True

    def update(self, *_tensors):
        pass

    def compute(self):
        return float(self.distributed_available_fn())


class Wrapper:
    """A metric of a user's own that is no module, and has one that is."""

    def __init__(self):
        self.inner = Exchanging()

    def update(self, *tensors):
        self.inner.update(*tensors)

    def compute(self):
        return self.inner.compute()


def test_torchmetrics_do_not_communicate_between_stages():
    metrics = Metrics({"own": Exchanging(), "wrapped": Wrapper()})
    evaluated = metrics.begin()
    evaluated.update((torch.zeros(2), torch.zeros(2)))
    assert evaluated.values() == {"own": 0.0, "wrapped": 0.0}
    assert metrics.fresh["wrapped"].compute() == 1.0
