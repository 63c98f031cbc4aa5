"""Casts of weights that a forward saves are those of the version that the backward reads."""

import pytest
import torch
from support.pipelines import Function
from torch import nn

from pipetrain.arithmetic import Arithmetic
from pipetrain.models.chain import chain_of
from pipetrain.run.checks.layers import weight_derived_layers
from pipetrain.stage.saved_tensors import SavedTensors
from pipetrain.stage.weight_casts import WeightCasts

BF16 = torch.bfloat16


class Half(nn.Module):
    """Uses a part of its weight."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 6))

    def forward(self, x):
        return x @ self.weight.split([2, 6])[1].t()


def input_gradient(module, x, backward_weights, gradient):
    """That of a forward in bf16 with the module's weights and a backward with others."""
    weights = {name: parameter.detach() for name, parameter in module.named_parameters()}
    saved = SavedTensors(weights, WeightCasts(weights))
    x = x.clone().requires_grad_()
    with saved.hooks(), Arithmetic("bf16").computing(x.device):
        output = module(x)
    saved.backward_weights = backward_weights
    return torch.autograd.grad(output, x, gradient(output))[0]


@pytest.mark.parametrize("name", ["linear", "convolution", "part"])
def test_backward_in_mixed_precision_reads_casts_of_the_weights_named(name):
    torch.manual_seed(0)
    module = {"linear": nn.Linear(6, 5), "convolution": nn.Conv2d(3, 4, 3), "part": Half()}[name]
    x = torch.randn(2, 3, 6, 6) if name == "convolution" else torch.randn(4, 6)
    other = {key: torch.randn_like(parameter) for key, parameter in module.named_parameters()}
    found = input_gradient(module, x, other, torch.ones_like)
    with torch.no_grad():
        for key, parameter in module.named_parameters():
            parameter.copy_(other[key])
    assert torch.equal(found, input_gradient(module, x, other, torch.ones_like))
    assert found.abs().sum() > 0


class First(nn.Module):
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
        First(nn.LSTM(8, 4, bidirectional=True, batch_first=True)),
        nn.Linear(8, 3),
    )
    assert weight_derived_layers(chain_of(net), (torch.randn(4, 5, 8),), Arithmetic("bf16")) == []


def test_memory_of_a_cast_that_is_gone_may_be_anothers():
    weight = torch.randn(64)
    with WeightCasts({"w": weight}) as casts:
        cast = weight.to(BF16)
        assert casts.of(cast[3:]).name == "w"
        pointer = cast.untyped_storage().data_ptr()
        del cast
        again = torch.zeros(64, dtype=BF16)
    assert again.untyped_storage().data_ptr() != pointer or casts.of(again) is None
