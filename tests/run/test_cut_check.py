"""Forwards that ask for dtypes, under lower precision."""

import pytest
import torch
from torch import nn

from pipetrain.arithmetic import ComputeOptions
from pipetrain.errors import ConfigError
from pipetrain.models.chain import chain_of
from pipetrain.run.cut_check import check_dtypes

X = (torch.linspace(-1, 1, 16).view(4, 4),)
BF16 = ComputeOptions("bf16")


class Asking(nn.Module):
    """Does something with the dtype that its first layer returns."""

    def __init__(self, function):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)
        self.function = function

    def forward(self, x):
        hidden = self.first(x)
        return self.last(self.norm(self.function(hidden.float(), hidden.dtype)))


def test_casts_that_only_lose_precision_are_let_be_and_leave_the_model_as_it_was():
    chain = chain_of(Asking(lambda x, dtype: x.to(dtype)), X)
    check_dtypes(chain, X, None, BF16)
    assert chain.module.norm.num_batches_tracked == 0
    assert chain.module.training


def test_forward_that_does_something_else_for_a_dtype_is_refused():
    chain = chain_of(Asking(lambda x, dtype: x * 2 if dtype == torch.float32 else x), X)
    with pytest.raises(
        ConfigError, match=r"^train.precision=bf16: in stages, Asking gives different .* dtypes .*fp32 works"
    ):
        check_dtypes(chain, X, None, BF16)
