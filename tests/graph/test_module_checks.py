"""Modules that stages and weight versions cannot handle."""

import pytest
import torch
from support.refusals import assert_refused
from torch import nn

from pipetrain.engine.errors import ConfigError
from pipetrain.graph.conversion import chain_of
from pipetrain.graph.module_checks import check_batch_norm, check_gradients, check_memory


def test_batch_norm_of_one_value_is_refused_with_layer():
    layers = nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.BatchNorm1d(4))
    assert_refused(r"batch norm in layer 2:BatchNorm1d", check_batch_norm, chain_of(layers), (torch.randn(6, 4),))
    assert layers[2].num_batches_tracked == 0
    check_batch_norm(chain_of(nn.Sequential(nn.BatchNorm2d(1))), (torch.randn(6, 1, 2, 2),))


def test_gradients_that_a_stage_cannot_give_are_refused():
    masked = nn.Linear(4, 4)
    check_gradients(chain_of(nn.Sequential(nn.Embedding(4, 4), masked)))
    masked.weight.register_hook(lambda gradient: 0 * gradient)
    assert_refused(r"0\.weight has a gradient hook", check_gradients, chain_of(nn.Sequential(masked)))
    assert_refused(r"model: 0 is an nn.SyncBatchNorm", check_gradients, chain_of(nn.Sequential(nn.SyncBatchNorm(3))))
    assert_refused(r"sparse=True", check_gradients, chain_of(nn.Sequential(nn.Embedding(4, 4, sparse=True))))


class Keeping(nn.Module):
    """Keeps a part of its weight."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.parts = {"upper": self.weight.detach()[:2]}


def test_weight_whose_memory_is_shared_is_refused():
    recurrent = nn.LSTM(4, 4)  # has its parameters in a list as well
    check_memory(chain_of(nn.Sequential(nn.BatchNorm1d(4), recurrent)))
    with pytest.raises(ConfigError, match=r"model: 1\.parts\.0 shares the memory"):
        check_memory(chain_of(nn.Sequential(nn.Linear(4, 4), Keeping())))
    recurrent.register_buffer("first", recurrent.bias_ih_l0.data)
    assert_refused(r"model: 0\.first shares the memory", check_memory, chain_of(nn.Sequential(recurrent)))
