"""Casts that layers of torch save."""

import torch
from support.pipelines import Function
from torch import nn

from pipetrain.engine.arithmetic import ComputeOptions
from pipetrain.graph.conversion import chain_of
from pipetrain.runner.training.components.rereads import weight_derived_layers


class FirstWeight(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *inputs):
        return self.module(*inputs)[0]


def test_casts_that_layers_of_torch_save_are_all_noticed():
    across = Function(lambda attention, x: attention(x, 2 * x, 2 * x)[0], nn.MultiheadAttention(8, 2, batch_first=True))
    net = nn.Sequential(
        nn.Linear(8, 8),
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
        across,
        FirstWeight(nn.LSTM(8, 4, bidirectional=True, batch_first=True)),
        nn.Linear(8, 3),
    )
    assert weight_derived_layers(chain_of(net), (torch.randn(4, 5, 8),), ComputeOptions("bf16")) == []
