import torch

from pipetrain.models.graph.example import Example


def test_example_is_resized_in_samples_and_its_sequences_in_length():
    ids, mask, features = torch.arange(12).view(2, 6), torch.ones(2, 6, dtype=torch.bool), torch.rand(2, 5)
    example = Example.of({"ids": ids, "mask": mask, "features": features})
    assert example.names == ("ids", "mask", "features")
    assert example.length == 6
    resized = example.resized(3, 5)
    assert [tuple(each.shape) for each in resized.tensors] == [(3, 5), (3, 5), (3, 5)]
    assert torch.equal(resized.tensors[0], ids[[0, 1, 0], :5])
    assert example.fixed(varied=True) == [(None, None), (None, None), (None, 5)]
    assert example.fixed(varied=False) == [(None, 6), (None, 6), (None, 5)]


def test_images_have_no_length():
    example = Example.of((torch.rand(2, 3, 8, 8),))
    assert example.length is None
    assert example.fixed(varied=False) == [(None, 3, 8, 8)]
