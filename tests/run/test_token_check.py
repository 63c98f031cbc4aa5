"""The vocabulary of a model held against that of the data set, before a run."""

from types import SimpleNamespace

import pytest
import torch
from support.worker_pool import settings
from torch import nn
from torch.utils.data import TensorDataset

from pipetrain.data.loader import Loader
from pipetrain.errors import ConfigError
from pipetrain.models.chain import LayerChain
from pipetrain.run.build.data import Data
from pipetrain.run.first_samples import check_samples
from pipetrain.run.token_check import check_vocabulary
from pipetrain.run.trial import trial_of


class Reader(nn.Module):
    """Looks up ids and their positions."""

    def __init__(self, tokens: int, positions: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(tokens, 2)
        self.positions = nn.Embedding(positions, 2)

    def forward(self, ids):
        return self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))


def tried(tokens, train, evaluation=((0, 0),), positions=2, **attributes):
    """Checks data of these ids for a model with tables for so many tokens and positions."""
    splits = [TensorDataset(torch.tensor(ids), torch.zeros(len(ids))) for ids in (train, evaluation)]
    dataset = SimpleNamespace(train=splits[0], eval=splits[1], **attributes)
    data = Data(dataset, *(Loader(split, batch_size=1, shuffle=False) for split in splits))
    reader = Reader(tokens, positions)
    trial = trial_of(data, LayerChain(reader, [reader]))
    check_vocabulary(settings("gpipe"), trial.tokens)
    check_samples(settings("gpipe"), data, None, trial.tokens)


def test_ids_and_vocabularies_that_the_model_has_rows_for_pass():
    tried(4, [[0, 3], [1, 2]])
    tried(4, [[0, 3]], vocabulary_size=4)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (([[4, 0]],), "sample 0 of `train` has the token id 4; the model's vocabulary has 4 tokens"),
        (([[0, 1], [9, 0]],), "sample 1 of `train` has the token id 9;"),
        (([[0, 1]], [[0, 1], [0, 5]]), "sample 1 of `eval` has the token id 5;"),
    ],
)
def test_first_id_without_a_row_is_told(ids, message):
    with pytest.raises(ConfigError, match=message):
        tried(4, *ids)


def test_larger_vocabulary_of_the_data_set_is_told_where_its_first_ids_fit():
    with pytest.raises(ConfigError, match=r"vocabulary has 4 tokens, and that of the data set 6; make a model for 6$"):
        tried(4, [[0, 3]], vocabulary_size=6)


def test_table_of_positions_that_is_too_short_is_named():
    message = r"row 1 of positions.weight, which has 1, for inputs of shape \(1, 2\); shorter samples or a larger table"
    with pytest.raises(ConfigError, match=message):
        tried(4, [[0, 3]], positions=1)
