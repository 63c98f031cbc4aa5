"""Layers that change their inputs in place: what a cut would change, and what no backward survives, is refused."""

import pytest
import torch
from torch import nn

from pipetrain.engine.arithmetic import ComputeOptions
from pipetrain.engine.errors import ConfigError
from pipetrain.graph.conversion import chain_of
from pipetrain.runner.training.components.layers import check_forwards, check_in_place


class Fork(nn.Module):
    def __init__(self, copies):
        super().__init__()
        self.linear, self.copies = nn.Linear(4, 4), copies

    def forward(self, x):
        x = self.linear(x)
        return x, x.clone() if self.copies else x


class Join(nn.Module):
    def forward(self, pair):
        return torch.relu_(pair[0]) + pair[1]


def check(*layers, cuts):
    chain, inputs = chain_of(nn.Sequential(*layers)), (torch.randn(6, 4),)
    chain.train()
    _, changing = check_forwards(chain, inputs, cuts, ComputeOptions())
    check_in_place(chain, inputs, cuts, changing)
    return changing


@pytest.mark.parametrize(("copies", "cuts"), [(False, []), (False, [2]), (True, [1])])
def test_layer_that_writes_over_what_nobody_else_gets_is_accepted(copies, cuts):
    assert check(Fork(copies), Join(), nn.Linear(4, 2), cuts=cuts) == [1, 1]


def test_layer_that_writes_over_another_tensor_of_its_message_is_refused():
    with pytest.raises(ConfigError, match="layer 1:Join changes its input in place, which shares memory with another"):
        check(Fork(copies=False), Join(), nn.Linear(4, 2), cuts=[1])


def test_layer_that_writes_over_what_the_backward_needs_is_refused_by_name():
    layers = [nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4), nn.Sigmoid(), nn.ELU(inplace=True)]
    with pytest.raises(ConfigError, match="layer 4:ELU changes its input in place, which the backward of the layer be"):
        check(*layers, nn.Linear(4, 2), cuts=[2])
