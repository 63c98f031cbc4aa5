"""The data set of a run, and what is found in its samples before any process starts."""

import contextlib
import random
import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from support.equal_bits import both_ways
from support.one_run import EVEN, prepared
from support.refusals import assert_refused
from support.worker_pool import job, settings
from torch import nn
from torch.utils.data import TensorDataset

from pipetrain.data.fingerprint import CHANGES
from pipetrain.data.loader import Loader
from pipetrain.data.ranges import LabelRange, TokenRange
from pipetrain.engine.errors import ConfigError, RunError
from pipetrain.engine.losses import CrossEntropy
from pipetrain.engine.models.chain import LayerChain
from pipetrain.runner.tracking.run_directory import RunDirectory
from pipetrain.runner.training.components.data import (
    Data,
    build_data,
    check_labels,
    check_vocabulary,
    label_range,
)
from pipetrain.runner.training.components.dry_run import training_dry_run
from pipetrain.runner.training.preflight import prepare
from pipetrain.runner.training.worker import build_data_in_worker, build_in_worker
from pipetrain.zoo.data.images.common import LabelledImages


def drawn():
    """Splits that all three default generators draw."""
    whole = [(torch.rand(1, 8, 8), label % 4) for label in range(20)]
    random.shuffle(whole)
    numbers = np.random.permutation(20)
    split = torch.utils.data.random_split([whole[number] for number in numbers], [16, 4])
    return SimpleNamespace(train=split[0], eval=split[1], classes=4)


def test_seed_draws_the_data_set_and_leaves_generators_as_they_were():
    def built(seed):
        data = build_data(settings("gpipe", dataset={"_target_": f"{__name__}.drawn"}, seed=seed))
        return torch.cat([inputs for (inputs,) in data.train.inputs(0)])

    first = built(1)
    torch.rand(3), random.random(), np.random.rand()
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    assert torch.equal(built(1), first)
    assert not torch.equal(built(2), first)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before[1:]


def test_processes_and_executors_draw_the_same_data_set(tmp_path):
    both_ways([job(tmp_path / "drawn", "pipedream", 2, dataset={"_target_": f"{__name__}.drawn"}, train={"epochs": 1})])


def empty():
    """A data set without samples to train on."""
    return SimpleNamespace(train=[], eval=[1])


def test_empty_data_set_is_refused_by_its_target():
    loader = {"shuffle": True, "limit": None, "workers": 0}
    chosen = settings("gpipe", dataset={"_target_": f"{__name__}.empty", **loader})
    assert_refused(rf"dataset._target_={__name__}.empty: its `train` is empty", build_data, chosen)


def test_evaluation_messages_are_of_a_microbatch_unless_set():
    data = build_data(settings("gpipe", train={"microbatches": 2}))
    assert (data.train.sizes(0), data.evaluation.sizes(0)) == ([4] * 5 + [2], [2] * 5)
    assert build_data(settings("gpipe", eval={"batch_size": 7})).evaluation.sizes(0) == [7, 3]


@pytest.fixture
def pictures(tmp_path):
    """A folder of four cats and four dogs for each split, and the settings of a run on it."""
    for part in ("train", "test"):
        for label in ("cat", "dog"):
            (tmp_path / part / label).mkdir(parents=True)
            for number in range(4):
                Image.new("RGB", (16, 16)).save(tmp_path / part / label / f"{number}.png")
    images = {"_target_": "pipetrain.zoo.data.images.folder.image_folder", "root": str(tmp_path)}
    model = {"_target_": "pipetrain.zoo.models.small_images.lenet5"}
    return tmp_path, settings("gpipe", dataset=images, model=model, partition=EVEN, device="cpu")


@pytest.mark.parametrize("split", ["train", "test"])
def test_undecodable_picture_is_named_before_start(pictures, split):
    folder, chosen = pictures
    damaged = folder / split / "dog" / "2.png"
    damaged.write_bytes(damaged.read_bytes()[:40])
    assert_refused(f"{damaged} cannot be decoded", prepare, chosen, RunDirectory(folder / "run"))


def test_files_are_read_once_to_try_them_and_their_labels(pictures, monkeypatch):
    folder, chosen = pictures
    read = []

    def sample(split, index):
        if "/test/" in split.images.paths[index]:
            read.append(index)
        return torch.zeros(3, 16, 16), 2 if len(read) == 8 else 1

    monkeypatch.setattr(LabelledImages, "__getitem__", sample)
    monkeypatch.setattr("pipetrain.data.sample_checks.known_labels", lambda _split: None)
    named = "sample 7 of `eval` has the label 2, and the model's 2 outputs"
    assert_refused(named, prepare, chosen, RunDirectory(folder / "run"))
    assert read == [*range(8)]


class Drawing:
    """Samples with numbers of a generator of their own: in the input alone, or in the target, too."""

    def __init__(self, both):
        self.both = both
        self.generator = np.random.default_rng()

    def __len__(self):
        return 16

    def __getitem__(self, index):
        drawn = int(self.generator.integers(1 << 20))
        return torch.full((1, 16, 16), float(drawn)), drawn % 4 if self.both else index % 4


def drawing(both):
    return SimpleNamespace(train=Drawing(both), eval=Drawing(both), channels=1, size=16, classes=4)


@pytest.mark.parametrize("both", [False, True])
def test_samples_that_two_stages_would_draw_apart_are_refused(tmp_path, monkeypatch, both):
    module = ModuleType("drawing_data")
    module.build = drawing
    monkeypatch.setitem(sys.modules, "drawing_data", module)
    data, model = (
        {"_target_": "drawing_data.build", "both": both},
        {"_target_": "pipetrain.zoo.models.small_images.lenet5"},
    )
    chosen = settings("gpipe", dataset=data, model=model, partition=EVEN, device="cpu")
    outcome = pytest.raises(ConfigError, match=r"input and target of sample \d+ differ each time it is read")
    with outcome if both else contextlib.nullcontext():
        made = prepare(chosen, RunDirectory(tmp_path / "run"))
        assert {parts[0] for parts in made.data["train"]["read"].values()} == {CHANGES}


def test_worker_that_reads_other_samples_than_preflight_did_is_told(tmp_path):
    made = prepared(tmp_path)
    built = build_in_worker(made, build_data_in_worker(made, torch.device("cpu")), has_last_stage=True)
    built.data.check_as_prepared(made.data)
    other = prepared(tmp_path, seed=4, dataset={"train": 21}).data
    with pytest.raises(RunError, match="the number of samples of its `train` is 22 here, but 21 when the run was pre"):
        built.data.check_as_prepared(other)


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


def check_samples(data, labels, tokens, *, evaluates=True):
    data.expect(labels, tokens)
    data.check_samples(evaluates=evaluates)


def tried(train, evaluation=(0,), loss=None, split=known, outputs=3, chosen=CHOSEN, **attributes):
    """Checks data sets of these labels for a model of so many outputs."""
    dataset = SimpleNamespace(train=split(train), eval=split(evaluation), **attributes)
    data = Data(dataset, *(Loader(each, batch_size=1, shuffle=False) for each in (dataset.train, dataset.eval)))
    scores = torch.zeros(1, outputs)
    first, model = (torch.tensor(train[:1]),), chosen.model.target
    labels = label_range(model, dataset, loss or CrossEntropy(), (scores,), first)
    check_labels(model, labels, first, [0])
    check_samples(data, labels, None)


@pytest.mark.parametrize("split", [known, Decoding])
def test_labels_that_the_model_has_outputs_for_pass(split):
    tried([0, 1, 2], [2, 1], split=split)
    tried([0, -100, 2], loss=nn.CrossEntropyLoss(), split=split)


@pytest.mark.parametrize("split", [known, Decoding], ids=["known", "read"])
@pytest.mark.parametrize(
    ("train", "evaluation", "named"),
    [
        ([0, 1, 3], [0], "sample 2 of `train` has the label 3, .* 0 to 2; .*classes=4$"),
        ([0, -1, 1], [0], "sample 1 of `train` has the label -1, .*correct the label$"),
        ([0, -100, 2], [0], "sample 1 of `train` has the label -100"),  # which this loss does not ignore
        ([0, 1, 2], [0, 9], "sample 1 of `eval` has the label 9, .*: model.classes=10$"),
    ],
)
def test_label_out_of_range_is_named_with_sample_and_remedy(split, train, evaluation, named):
    assert_refused(named, tried, train, evaluation, split=split)


@pytest.mark.parametrize(
    ("train", "options", "named"),
    [
        ([0, 3], {"classes": 3}, "there are 3 classes; correct"),
        ([0], {"classes": 5}, r"model\._target_=.*: 3 outputs, .* has 5 classes; model.classes=5 works"),
        ([0], {"classes": list("abcde")}, "model.classes=5 works"),
        ([0, 0], {"outputs": 1}, "all samples have the same class"),
        ([0, 1], {"outputs": 1, "model": {"_target_": "torch.nn.Sequential"}}, r"model\._target_=.*: 1 output; "),
        ([0, 1], {"outputs": 1, "model": {"classes": 1}}, r"model\._target_=.*: 1 output; "),
        ([0, 3], {"model": {"_target_": "torch.nn.Sequential"}}, "correct the label$"),  # no setting for outputs
    ],
)
def test_outputs_that_do_not_fit_the_classes_are_refused(train, options, named):
    chosen = settings("gpipe", model=options.pop("model")) if "model" in options else CHOSEN
    assert_refused(named, tried, train, chosen=chosen, **options)


def test_labels_changed_by_dataset_are_checked_as_given():
    class FromOne(TensorDataset):
        def __getitem__(self, index):
            inputs, label = super().__getitem__(index)
            return inputs, label - 1

    tried([1, 2, 3], [1], split=lambda labels: FromOne(torch.zeros(len(labels), 2), torch.tensor(labels)))


def test_listed_labels_of_files_are_checked_to_the_last(monkeypatch):
    class Files(TensorDataset):
        reads_files = True

    monkeypatch.setattr("pipetrain.data.sample_checks._SECONDS", 0.0)
    with pytest.raises(ConfigError, match="sample 3 of `train` has the label 7"):
        tried([0, 1, 2, 7], split=lambda labels: Files(torch.zeros(len(labels), 2), torch.tensor(labels)))


def test_reading_labels_ends_in_time_and_draws_nothing(monkeypatch):
    monkeypatch.setattr("pipetrain.data.sample_checks._SECONDS", 0.0)
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
    check_samples(data, None, trial.tokens)


def test_ids_and_vocabularies_that_the_model_has_rows_for_pass():
    tried_tokens(4, [[0, 3], [1, 2]])
    tried_tokens(4, [[0, 3]], vocabulary_size=4)


@pytest.mark.parametrize(
    ("ids", "options", "named"),
    [
        ([[[4, 0]]], {}, "sample 0 of `train` has the token id 4; the model's vocabulary has 4 tokens"),
        ([[[0, 1], [9, 0]]], {}, "sample 1 of `train` has the token id 9;"),
        ([[[0, 1]], [[0, 1], [0, 5]]], {}, "sample 1 of `eval` has the token id 5;"),
        ([[[0, 3]]], {"vocabulary_size": 6}, "has 4 tokens, and the data set's has 6; make a model for 6$"),
        ([[[0, 3]]], {"positions": 1}, r"row 1 of positions.weight, which has 1, .*shape \(1, 2\)"),
    ],
)
def test_ids_and_vocabularies_without_rows_are_refused(ids, options, named):
    assert_refused(named, tried_tokens, 4, *ids, **options)


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
    check_samples(data_of(train, evaluation), LABELS, TOKENS)
    assert (train.read, evaluation.read) == ([*range(5)], [*range(3)])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"label": 2}, "sample 0 of `eval` has the label 2"), ({"token": 4}, "sample 0 of `eval` has the token id 4")],
)
def test_wrong_label_or_token_of_the_same_reading_is_told(wrong, message):
    assert_refused(message, check_samples, data_of(Texts(5), Texts(3, **wrong)), LABELS, TOKENS)


def test_evaluation_set_of_a_run_without_evaluations_is_not_read():
    train, evaluation = Texts(5), Texts(3)
    check_samples(data_of(train, evaluation), LABELS, TOKENS, evaluates=False)
    assert evaluation.read == []


def test_samples_of_which_everything_is_known_are_not_read():
    train, evaluation = Texts(5), Texts(3)
    check_samples(data_of(train, evaluation), None, replace(TOKENS, known=4))
    assert train.read == evaluation.read == []
