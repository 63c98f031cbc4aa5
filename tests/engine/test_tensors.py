"""What crosses a cut keeps its values and its memory order."""

import pytest
import torch
from torch import nn

from pipetrain.engine.tensors import close, dense, dense_copy, flat, is_dense


def lstm_output():
    torch.manual_seed(0)
    return nn.LSTM(3, 4, batch_first=True)(torch.randn(2, 5, 3).transpose(0, 1).contiguous().transpose(0, 1))[
        0
    ].detach()


DENSE = {
    "contiguous": torch.randn(2, 3, 4),
    "transposed": torch.randn(3, 4).t(),
    "channels_last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "lstm": lstm_output(),
    "permuted": torch.randn(2, 3, 4).permute(2, 0, 1),
    "size one": torch.randn(4, 1, 3).transpose(0, 1),
    "vector": torch.randn(7),
    "scalar": torch.tensor(3.5),
    "bool": torch.tensor([[True, False], [False, True]]).t(),
    "integers": torch.arange(6).reshape(2, 3),
    "offset": torch.randn(10)[4:],
    "rows of a matrix": torch.randn(6, 3)[2:5],
}
LOOSE = {
    "expanded": torch.randn(3, 1).expand(3, 4),
    "expanded scalar": torch.tensor(1.0).expand(2, 2),
    "every other": torch.randn(10)[::2],
    "columns": torch.randn(4, 6)[:, :3],
    "channels of channels_last": torch.randn(2, 4, 3, 3).to(memory_format=torch.channels_last)[:, :2],
    "windows": torch.randn(8).unfold(0, 4, 2),
    "diagonal": torch.randn(4, 4).diagonal(),
}
EMPTY = {"empty": torch.empty(0), "empty rows": torch.empty(0, 3), "empty columns": torch.empty(3, 0).t()}


@pytest.mark.parametrize("name", DENSE)
def test_dense_tensor_arrives_with_its_strides_in_other_memory(name):
    tensor = DENSE[name]
    arrived = dense_copy(tensor)
    assert torch.equal(arrived, tensor)
    assert (arrived.shape, arrived.stride(), arrived.dtype) == (tensor.shape, tensor.stride(), tensor.dtype)
    assert arrived.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr()
    assert arrived.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    assert dense(tensor) is tensor


@pytest.mark.parametrize("name", LOOSE)
def test_tensor_with_gaps_or_overlaps_arrives_contiguous(name):
    tensor = LOOSE[name]
    assert not is_dense(tensor)
    arrived = dense_copy(tensor)
    assert torch.equal(arrived, tensor)
    assert is_dense(arrived)
    assert arrived.is_contiguous()
    assert arrived.stride() == dense(tensor).stride()


@pytest.mark.parametrize("name", EMPTY)
def test_empty_tensor_arrives_with_its_shape(name):
    arrived = dense_copy(EMPTY[name])
    assert (arrived.shape, arrived.dtype) == (EMPTY[name].shape, EMPTY[name].dtype)


@pytest.mark.parametrize("name", DENSE)
def test_flat_form_of_a_tensor_is_its_memory_in_its_own_order(name):
    tensor = DENSE[name]
    stretch = flat(tensor)
    assert stretch.shape == (tensor.numel(),)
    assert stretch.data_ptr() == tensor.data_ptr()
    rebuilt = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    flat(rebuilt).copy_(stretch)
    assert torch.equal(rebuilt, tensor)


def test_strides_of_a_tensor_change_the_bits_of_a_product():
    # the reason for all of this; where a build computes alike the test says so rather than pass for nothing
    x = torch.linspace(-4, 4, 7 * 33).reshape(7, 33).t()
    if torch.equal(torch.sigmoid(x), torch.sigmoid(x.contiguous())):
        pytest.skip("this build's sigmoid gives equal bits for all strides")
    assert torch.equal(torch.sigmoid(dense_copy(x)), torch.sigmoid(x))


ONE = torch.tensor([1.0, float("nan")])


@pytest.mark.parametrize(
    ("one", "other", "tolerance", "same"),
    [
        (ONE, ONE.clone(), 0.0, True),
        (torch.complex(ONE, ONE), torch.complex(ONE, ONE), 0.0, True),
        (torch.tensor([1 + 2j]), torch.tensor([1 + 3j]), 1e-4, False),
        (torch.tensor([1.0]).double(), torch.tensor([1.0]).double() + 1e-12, 0.0, False),
        (torch.tensor([1.0]).double(), torch.tensor([1.0]).double() + 1e-12, 1e-4, True),
        (torch.tensor([1.0]), torch.tensor([1.0]).bfloat16(), 0.0, True),
        (torch.tensor([2**53]), torch.tensor([2**53 + 1]), 1e-4, False),
        (torch.tensor([True]), torch.tensor([False]), 1e-4, False),
        (torch.eye(2), torch.eye(2).to_sparse(), 0.0, True),
        (torch.ones(2), torch.ones(1, 2), 0.0, False),
        (torch.ones(2), None, 0.0, False),
        (None, None, 0.0, True),
    ],
)
def test_values_are_compared_in_their_own_precision(one, other, tolerance, same):
    assert close(one, other, tolerance) is same


def test_conjugate_becomes_dense_memory_of_its_values():
    tensor = torch.tensor([1 + 2j, 3 - 4j]).conj()
    for view in (tensor, tensor.imag):
        assert torch.equal(dense(view), view)
        assert not dense(view).is_conj()
        assert not dense(view).is_neg()
