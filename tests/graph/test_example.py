from collections import namedtuple

import pytest
import torch
from support.refusals import assert_refused

from pipetrain.engine.errors import ConfigError
from pipetrain.graph.example import Example, select_outputs


def test_example_is_resized_in_samples_and_length():
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


A, B = torch.zeros(1), torch.ones(1)
Pair = namedtuple("Pair", "first logits")


@pytest.mark.parametrize(
    ("returned", "wanted", "tensors", "name"),
    [
        (A, None, (A,), None),
        ((A, B), None, (A, B), None),
        ((A, B), "1", (B,), "1"),
        ({"loss": None, "logits": B, "states": A}, None, (B,), "logits"),
        ({"logits": B, "cache": None}, None, (B,), None),
        ({"logits": B, "cache": None}, "logits", (B,), "logits"),
        ({"states": A, "pooled": B}, None, (A,), "states"),
        ({"states": A, "pooled": B}, "pooled", (B,), "pooled"),
        (Pair(A, B), None, (B,), "logits"),
    ],
)
def test_loss_gets_tensors_the_named_entry_or_the_logits(returned, wanted, tensors, name):
    found, picked = select_outputs(returned, wanted)
    assert [id(each) for each in found] == [id(each) for each in tensors]
    assert picked == name


def test_entry_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(ConfigError, match=r"model\.output=scores: the forward returns logits, states"):
        select_outputs({"logits": A, "states": B}, "scores")


@pytest.mark.parametrize("returned", [None, {"loss": None}, (A, None), ()])
def test_forward_that_returns_no_tensors_is_refused(returned):
    assert_refused("the forward returns", select_outputs, returned, None)
