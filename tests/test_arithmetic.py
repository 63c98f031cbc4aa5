"""How layers compute."""

import pytest
import torch
from torch import nn

from pipetrain.arithmetic import Arithmetic

CPU = torch.device("cpu")


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_mixed_precision_computes_in_sixteen_bits_and_returns_float32(precision, dtype):
    arithmetic, layer = Arithmetic(precision), nn.Linear(3, 2)
    with arithmetic.computing(CPU):
        output = layer(torch.randn(4, 3))
    assert output.dtype == dtype
    assert layer.weight.dtype == torch.float32
    (returned, ids) = arithmetic.returned((output, torch.arange(3)))
    assert (returned.dtype, ids.dtype) == (torch.float32, torch.int64)


def test_weight_that_changes_inside_one_context_is_cast_anew():
    layer, x = nn.Linear(3, 2, bias=False), torch.ones(1, 3)
    with Arithmetic("bf16").computing(CPU):
        layer(x)
        with torch.no_grad():
            layer.weight.data.fill_(2.0)
        assert layer(x).tolist() == [[6.0, 6.0]]


def test_full_precision_changes_nothing():
    tensors = (torch.randn(2, 3, 4, 4), torch.randn(3, dtype=torch.float64))
    plain = Arithmetic()
    assert plain.given(tensors) is tensors
    assert plain.returned(tensors) is tensors
    assert plain.callables([layer := nn.ReLU()]) == [layer]


def test_channels_last_arranges_pictures_and_convolutions_alone():
    arithmetic = Arithmetic(channels_last=True)
    module = nn.ModuleList([nn.Conv2d(3, 4, 3), nn.Linear(3, 2)])
    arithmetic.arrange(module)
    picture, tokens = arithmetic.given((torch.randn(2, 3, 4, 4), torch.zeros(2, 5, dtype=torch.long)))
    assert module[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert module[1].weight.is_contiguous()
    assert picture.stride() == (48, 1, 12, 3)
    assert tokens.is_contiguous()
