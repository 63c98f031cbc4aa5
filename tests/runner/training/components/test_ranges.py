"""Labels held against the model's outputs before a run."""

import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from support.worker_pool import settings
from torch import nn
from torch.utils.data import TensorDataset

from pipetrain.engine.data.loader import Loader
from pipetrain.engine.data.ranges import LabelRange, TokenRange
from pipetrain.engine.errors import ConfigError
from pipetrain.engine.losses import CrossEntropy
from pipetrain.engine.models.chain import LayerChain
from pipetrain.runner.config.instantiate import Target
from pipetrain.runner.training.components.data import Data, check_labels, check_samples, check_vocabulary, label_range
from pipetrain.runner.training.components.dry_run import training_dry_run

CHOSEN = settings("gpipe")


class Decoding:
    """A data set of which only reading tells the labels, and that draws from Python's generator meanwhile."""

    def __init__(self, labels):
        self.labels, self.read = labels, 0

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        self.read += 1
        random.random()
        return torch.zeros(2), self.labels[index]


def known(labels):
    return TensorDataset(torch.zeros(len(labels), 2), torch.tensor(labels))


def tried(train, evaluation=(0,), loss=None, split=known, outputs=3, chosen=CHOSEN, **attributes):
    """Checks data sets of these labels for a model of so many outputs."""
    dataset = SimpleNamespace(train=split(train), eval=split(evaluation), **attributes)
    data = Data(dataset, *(Loader(each, batch_size=1, shuffle=False) for each in (dataset.train, dataset.eval)))
    scores = torch.zeros(1, outputs)
    first, model = (torch.tensor(train[:1]),), chosen.model.target
    labels = label_range(model, dataset, loss or CrossEntropy(), (scores,), first)
    check_labels(model, dataset, labels, first, [0])
    check_samples(data, labels, None, evaluates=True)


@pytest.mark.parametrize("split", [known, Decoding])
def test_labels_that_the_model_has_outputs_for_pass(split):
    tried([0, 1, 2], [2, 1], split=split)
    tried([0, -100, 2], loss=nn.CrossEntropyLoss(), split=split)


@pytest.mark.parametrize("split", [known, Decoding], ids=["known", "read"])
@pytest.mark.parametrize(
    ("train", "evaluation", "message"),
    [
        ([0, 1, 3], [0], r"sample 2 of `train` has the label 3, .* 3 outputs are for the labels 0 to 2; .*classes=4$"),
        ([0, -1, 1], [0], r"sample 1 of `train` has the label -1, .* labels 0 to 2; correct the label$"),
        (
            [0, 1, 2],
            [0, 9],
            r"sample 1 of `eval` has the label 9, .*, or give the model .*: model.classes=10$",
        ),
    ],
)
def test_label_out_of_range_is_named_with_sample_and_remedy(split, train, evaluation, message):
    with pytest.raises(ConfigError, match=message):
        tried(train, evaluation, split=split)


def test_label_that_a_loss_does_not_ignore_is_out_of_range():
    with pytest.raises(ConfigError, match="sample 1 of `train` has the label -100"):
        tried([0, -100, 2])


def test_label_out_of_range_is_named_with_dataset_classes():
    with pytest.raises(ConfigError, match=r"labels 0 to 2; the data object says that there are 3 classes; correct"):
        tried([0, 3], classes=3)


@pytest.mark.parametrize("classes", [5, list("abcde")])
def test_model_with_fewer_outputs_than_classes_is_refused(classes):
    with pytest.raises(ConfigError, match=r"model._target_=.*: 3 outputs, .* are 5 classes; model.classes=5 works"):
        tried([0], classes=classes)


def test_labels_changed_by_dataset_are_checked_as_given():
    class FromOne(TensorDataset):
        def __getitem__(self, index):
            inputs, label = super().__getitem__(index)
            return inputs, label - 1

    tried([1, 2, 3], [1], split=lambda labels: FromOne(torch.zeros(len(labels), 2), torch.tensor(labels)))


def test_reading_labels_ends_in_time_and_draws_nothing(monkeypatch):
    monkeypatch.setattr("pipetrain.runner.training.components.data._SECONDS", 0.0)
    split = Decoding([0, 1, 3])
    before = random.getstate()
    tried([0, 1, 3], split=lambda labels: split if len(labels) > 1 else known(labels))
    assert split.read == 2  # once more with a seed, as it draws
    assert random.getstate() == before


@pytest.mark.parametrize(
    ("outputs", "targets", "loss"),
    [
        (torch.zeros(2, 3), torch.zeros(2), CrossEntropy()),
        (torch.zeros(2, 3), torch.zeros(2, dtype=torch.long), nn.MSELoss()),
        (torch.zeros(2), torch.zeros(2, dtype=torch.long), CrossEntropy()),
    ],
    ids=["no classes", "another loss", "no scores"],
)
def test_targets_that_are_no_labels_have_no_range(outputs, targets, loss):
    assert label_range(CHOSEN.model, SimpleNamespace(), loss, (outputs,), (targets,)) is None


def test_outputs_without_a_setting_get_no_advice_on_one():
    model = Target("model", "torch.nn.Sequential", {})
    outputs, targets = (torch.zeros(1, 3),), (torch.tensor([0]),)
    labels = label_range(model, SimpleNamespace(), CrossEntropy(), outputs, targets)
    with pytest.raises(ConfigError, match=r"correct the label$"):
        labels.check(torch.tensor([3]), [0])


def test_data_of_one_class_are_refused():
    with pytest.raises(ConfigError, match="all samples are of one class, so there is nothing to learn"):
        tried([0, 0], outputs=1)


@pytest.mark.parametrize("model", [{"_target_": "torch.nn.Sequential"}, {"classes": 1}])
def test_model_with_one_output_is_refused_for_data_of_two_classes(model):
    with pytest.raises(ConfigError, match=r"model._target_=.*: 1 output; .* one for each class, 2 for two classes"):
        tried([0, 1], outputs=1, chosen=settings("gpipe", model=model))


class Reader(nn.Module):
    """Looks up ids and their positions."""

    def __init__(self, tokens: int, positions: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(tokens, 2)
        self.positions = nn.Embedding(positions, 2)

    def forward(self, ids):
        return self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))


def tried_tokens(tokens, train, evaluation=((0, 0),), positions=2, **attributes):
    """Checks data of these ids for a model with tables for so many tokens and positions."""
    splits = [TensorDataset(torch.tensor(ids), torch.zeros(len(ids))) for ids in (train, evaluation)]
    dataset = SimpleNamespace(train=splits[0], eval=splits[1], **attributes)
    data = Data(dataset, *(Loader(split, batch_size=1, shuffle=False) for split in splits))
    reader = Reader(tokens, positions)
    trial = training_dry_run(data, LayerChain(reader, [reader]))
    check_vocabulary(CHOSEN.model.target, trial.tokens)
    check_samples(data, None, trial.tokens, evaluates=True)


def test_ids_and_vocabularies_that_the_model_has_rows_for_pass():
    tried_tokens(4, [[0, 3], [1, 2]])
    tried_tokens(4, [[0, 3]], vocabulary_size=4)


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
        tried_tokens(4, *ids)


def test_larger_vocabulary_is_reported_even_if_first_ids_fit():
    with pytest.raises(ConfigError, match=r"vocabulary has 4 tokens, and the data set's has 6; make a model for 6$"):
        tried_tokens(4, [[0, 3]], vocabulary_size=6)


def test_table_of_positions_that_is_too_short_is_named():
    message = r"row 1 of positions.weight, which has 1, for inputs of shape \(1, 2\); shorter samples or a larger table"
    with pytest.raises(ConfigError, match=message):
        tried_tokens(4, [[0, 3]], positions=1)


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
    check_samples(data_of(train, evaluation), LABELS, TOKENS, evaluates=True)
    assert (train.read, evaluation.read) == ([*range(5)], [*range(3)])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"label": 2}, "sample 0 of `eval` has the label 2"), ({"token": 4}, "sample 0 of `eval` has the token id 4")],
)
def test_wrong_label_or_token_of_the_same_reading_is_told(wrong, message):
    with pytest.raises(ConfigError, match=message):
        check_samples(data_of(Texts(5), Texts(3, **wrong)), LABELS, TOKENS, evaluates=True)


def test_evaluation_set_of_a_run_without_evaluations_is_not_read():
    train, evaluation = Texts(5), Texts(3)
    check_samples(data_of(train, evaluation), LABELS, TOKENS, evaluates=False)
    assert evaluation.read == []


def test_samples_of_which_everything_is_known_are_not_read():
    train, evaluation = Texts(5), Texts(3)
    check_samples(data_of(train, evaluation), None, replace(TOKENS, known=4), evaluates=True)
    assert train.read == evaluation.read == []
