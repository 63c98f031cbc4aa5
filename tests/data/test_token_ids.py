"""Token ids held against the tables of a model."""

import re

import pytest
import torch

from pipetrain.data.fetch import Fetch
from pipetrain.data.token_ids import TokenRange
from pipetrain.errors import ConfigError

IDS = torch.tensor([[0, 3, 1], [2, 4, 0]])


def test_ids_of_the_vocabulary_pass():
    TokenRange("train", {1: 5}).check((IDS + 9, IDS), [0, 1])


@pytest.mark.parametrize(
    ("ids", "known", "message"),
    [
        (
            IDS,
            None,
            "sample 8 of `eval` has the token id 4; the model's vocabulary has 4 tokens, 0 to 3; correct it, or",
        ),
        (IDS, 9, "0 to 3, and the data set's 9; correct it, or make a model for 9"),
        (-IDS, 9, "sample 7 of `eval` has the token id -3; .*, and the data set's 9; correct the id$"),
    ],
)
def test_id_without_a_row_is_told_with_its_sample_and_both_vocabularies(ids, known, message):
    tokens = TokenRange("train", {0: 4}, known).of("eval")
    with pytest.raises(ConfigError, match=re.compile(message)):
        tokens.check((ids,), [7, 8])


def test_ids_are_looked_at_when_a_minibatch_is_read():
    pairs = [(ids, 0) for ids in IDS]
    fetch = Fetch(pairs, 0, inputs=True, targets=True, tokens=TokenRange("train", {0: 4}))
    fetch(0, [0])
    with pytest.raises(ConfigError, match="sample 1 of `train` has the token id 4"):
        fetch(0, [0, 1])
