from collections import namedtuple

import pytest
import torch

from pipetrain.errors import ConfigError
from pipetrain.models.graph.outputs import selected

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
        ({"states": A, "pooled": B}, None, (A,), "states"),
        ({"states": A, "pooled": B}, "pooled", (B,), "pooled"),
        (Pair(A, B), None, (B,), "logits"),
    ],
)
def test_loss_gets_tensors_the_named_entry_or_the_logits(returned, wanted, tensors, name):
    found, picked = selected(returned, wanted)
    assert [id(each) for each in found] == [id(each) for each in tensors]
    assert picked == name


def test_entry_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(ConfigError, match=r"model\.output=scores: the forward returns logits, states"):
        selected({"logits": A, "states": B}, "scores")


@pytest.mark.parametrize("returned", [None, {"loss": None}, (A, None), ()])
def test_forward_that_returns_no_tensors_is_refused(returned):
    with pytest.raises(ConfigError, match="the forward returns"):
        selected(returned, None)
