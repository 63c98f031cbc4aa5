import torch
from hypothesis import given
from hypothesis import strategies as st

from pipetrain.engine.data.minibatches import microbatch_sizes, split


def test_split_cuts_every_tensor_alike():
    ids, masks = torch.arange(10).reshape(5, 2), torch.arange(5)
    first, second = split((ids, masks), 2)
    assert [tuple(tensor.shape) for tensor in first] == [(3, 2), (3,)]
    assert second[1].tolist() == [3, 4]
    assert second[0].data_ptr() == ids[3:].data_ptr()


@given(st.integers(0, 70), st.integers(1, 12))
def test_microbatch_sizes_are_those_of_split(samples, microbatches):
    cut = split((torch.arange(samples),), microbatches)
    assert [len(tensor) for (tensor,) in cut] == microbatch_sizes(samples, microbatches)
    assert torch.equal(torch.cat([tensor for (tensor,) in cut]), torch.arange(samples))
