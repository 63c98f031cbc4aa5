"""Chains of recorded modules in the engine."""

import torch
from support.pipelines import sgd
from support.refusals import assert_refused
from torch import nn
from torch.nn import functional

from pipetrain.engine.arithmetic import ComputeOptions
from pipetrain.engine.losses import CrossEntropy
from pipetrain.engine.models.chain import sharing_buffers
from pipetrain.engine.models.ties import untie
from pipetrain.engine.optim.optimizer_factory import OptimizerFactory
from pipetrain.engine.stage.base import Training
from pipetrain.engine.stage.stage import Stage
from pipetrain.graph.conversion import chain_of


class Functional(nn.Module):
    """Ties its output to its embedding by reading that weight in the forward."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.hidden = nn.Linear(3, 3)

    def forward(self, ids):
        return functional.linear(self.hidden(self.embedding(ids)), self.embedding.weight)


def test_weight_read_outside_a_module_cannot_be_untied():
    chain = chain_of(Functional(), [torch.zeros(4, 2, dtype=torch.int64)])
    assert_refused(r"layer 2 .*embedding.weight.* nn.Linear", untie, chain)


class Centered(nn.Module):
    """Its own forward reads a buffer, which the layers of its recording hold as well."""

    def __init__(self):
        super().__init__()
        self.conv, self.last = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)
        self.register_buffer("mean", torch.rand(1, 3, 1, 1))

    def forward(self, images):
        return self.last(self.conv(images - self.mean).relu()) + self.mean.mean()


def test_buffers_of_a_recorded_forward_have_their_names_in_any_memory_format():
    images = torch.randn(5, 3, 8, 8)
    chain = chain_of(Centered(), (images,))
    training = Training(
        OptimizerFactory(sgd, lambda _k: 0.1), CrossEntropy(), arithmetic=ComputeOptions(channels_last=True)
    )
    assert Stage(0, chain, (0, len(chain)), training).state().keys() == chain.module.state_dict().keys()


def test_buffers_stay_shared_when_modules_are_moved():
    images = torch.randn(5, 3, 8, 8)
    chain = chain_of(Centered(), (images,))
    with sharing_buffers(chain.module, *chain.layers):
        chain.module.double()
    assert torch.equal(chain(images.double()), chain.module(images.double()))
    chain.module.mean.add_(1)
    assert torch.equal(chain(images.double()), chain.module(images.double()))
