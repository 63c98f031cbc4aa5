"""Samples that are read before a run."""

from dataclasses import replace

import pytest
import torch
from support.worker_pool import settings

from pipetrain.data.labels import LabelRange
from pipetrain.data.loader import Loader
from pipetrain.data.token_ids import TokenRange
from pipetrain.errors import ConfigError
from pipetrain.run.build.data import Data
from pipetrain.run.first_samples import check_samples

CHOSEN = settings("gpipe")
LABELS, TOKENS = LabelRange("train", 2), TokenRange("train", {0: 4})


class Texts:
    """A split of so many texts, of which only reading tells anything."""

    def __init__(self, count, label=1, token=3):
        self.count, self.label, self.token, self.read = count, label, token, []

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        self.read.append(index)
        return torch.tensor([0, self.token]), self.label


def data_of(train, evaluation):
    return Data(None, *(Loader(split, batch_size=1, shuffle=False) for split in (train, evaluation)))


def test_texts_are_read_once_for_their_labels_and_their_tokens():
    train, evaluation = Texts(5), Texts(3)
    check_samples(CHOSEN, data_of(train, evaluation), LABELS, TOKENS)
    assert (train.read, evaluation.read) == ([*range(5)], [*range(3)])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"label": 2}, "sample 0 of `eval` has the label 2"), ({"token": 4}, "sample 0 of `eval` has the token id 4")],
)
def test_wrong_label_or_token_of_the_same_reading_is_told(wrong, message):
    with pytest.raises(ConfigError, match=message):
        check_samples(CHOSEN, data_of(Texts(5), Texts(3, **wrong)), LABELS, TOKENS)


def test_evaluation_set_of_a_run_without_evaluations_is_not_read():
    train, evaluation = Texts(5), Texts(3)
    without = replace(CHOSEN, eval=replace(CHOSEN.eval, every_epochs=0))
    check_samples(without, data_of(train, evaluation), LABELS, TOKENS)
    assert evaluation.read == []


def test_samples_of_which_everything_is_known_are_not_read():
    train, evaluation = Texts(5), Texts(3)
    check_samples(CHOSEN, data_of(train, evaluation), None, replace(TOKENS, known=4))
    assert train.read == evaluation.read == []
