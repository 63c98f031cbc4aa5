"""What a model takes from the data."""

import os
import random
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support import ragged_data
from support.refusals import assert_refused
from support.worker_pool import settings
from torch import nn
from torch.utils.data import TensorDataset

from pipetrain.data.sample_facts import first_inputs
from pipetrain.engine.arithmetic import ComputeOptions
from pipetrain.engine.errors import ConfigError
from pipetrain.engine.models.chain import LayerChain
from pipetrain.graph.conversion import chain_of, check_cut
from pipetrain.runner.config.instantiate import Target
from pipetrain.runner.config.schema import TrainConfig
from pipetrain.runner.training.components.arithmetic import build_arithmetic
from pipetrain.runner.training.components.data import (
    build_data,
    build_dataset,
)
from pipetrain.runner.training.components.model import (
    build_model,
    check_model,
    derived_from_data,
    from_data,
)
from pipetrain.runner.training.planned_run import plan_run

LENET = Target("model", "pipetrain.zoo.models.small_images.lenet5", {})
IMAGE = torch.zeros(1, 28, 24)


def data(train=((IMAGE, 0),), **attributes):
    return SimpleNamespace(train=train, eval=train, **attributes)


def labelled(*labels, shift=0):
    class Shifted(TensorDataset):
        def __getitem__(self, index):
            image, label = super().__getitem__(index)
            return image, label - shift

    return Shifted(torch.zeros(len(labels), 1, 28, 24), torch.tensor(labels))


class Frozen(nn.Sequential):
    """Its `train` leaves batch norm in evaluation mode."""

    def train(self, mode=True):  # noqa: FBT002  (as torch has it)
        super().train(mode)
        self[1].eval()
        return self


def in_evaluation(channels, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64 * channels, classes), nn.Dropout(0.5)).eval()


def frozen(channels, classes):
    return Frozen(nn.Flatten(), nn.BatchNorm1d(64 * channels), nn.Linear(64 * channels, classes))


def elsewhere(channels, classes):
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64 * channels), nn.Linear(64 * channels, classes)).to("meta")


def chain_elsewhere(channels, classes):
    model = elsewhere(channels, classes)
    return LayerChain(model, list(model))


@pytest.mark.parametrize("model", ["elsewhere", "chain_elsewhere"])
def test_model_on_another_device_is_moved_to_the_cpu(monkeypatch, model):
    monkeypatch.setattr(nn.Module, "cpu", lambda module: module.to_empty(device="cpu"))  # a GPU's would keep the values
    chosen = settings("gpipe", model={"_target_": f"{__name__}.{model}"})
    chain = build_model(chosen, build_dataset(chosen.dataset, chosen.seed))
    states = [chain.module.state_dict(), *(layer.state_dict() for layer in chain.layers)]
    assert not any(tensor.is_meta for state in states for tensor in state.values())


@pytest.mark.parametrize(("model", "modes"), [("in_evaluation", [True] * 3), ("frozen", [True, False, True])])
def test_model_trains_in_the_mode_of_its_own_train(model, modes):
    chosen = settings("gpipe", model={"_target_": f"{__name__}.{model}"})
    planned = plan_run(replace(chosen, partition=replace(chosen.partition, options={"boundaries": [1]})))
    assert [part.training for part in planned.chain.module] == modes
    assert list(check_model(chosen, planned.chain, planned.data)) == []
    assert [part.training for part in planned.chain.module] == modes


def test_first_inputs_share_a_minibatch_that_the_data_set_makes():
    (images,) = first_inputs(ragged_data.data(ragged_data.GroupedBySize))
    assert images.shape == (3, 1, 6, 6)


def test_data_attributes_fill_in_open_settings():
    made = data(channels=3, classes=["cat", "dog"], size=20)
    assert from_data(LENET, made) == {"channels": 3, "classes": 2, "size": (20, 20)}
    set_ = Target("model", LENET.path, {"classes": 7})
    assert from_data(set_, made) == {"channels": 3, "size": (20, 20)}
    assert derived_from_data(LENET, made) == {}


def test_missing_attributes_are_derived_from_sample_and_labels():
    found = {"channels": 1, "classes": 6, "size": (28, 24)}
    assert from_data(LENET, data(labelled(2, 5, 0))) == derived_from_data(LENET, data(labelled(2, 5, 0))) == found


def test_number_of_classes_is_that_of_their_names():
    split = labelled(0, 1)
    split.classes = ["cat", "dog", "bird"]
    assert from_data(LENET, data(split))["classes"] == 3


def test_parameter_with_a_default_is_not_derived():
    synthetic = Target("model", "pipetrain.zoo.data.images.synthetic.synthetic_images", {})
    assert derived_from_data(synthetic, data()) == {}
    assert from_data(synthetic, data(channels=1)) == {"channels": 1}


@pytest.mark.parametrize(
    ("train", "name"),
    [
        ([(IMAGE, 0)], "classes=10"),
        (labelled(1, 2, shift=1), "classes=10"),
        ([(torch.zeros(5), 0)], "channels=3"),
        ([(np.zeros((28, 28, 3)), 0)], "channels=3"),
    ],
    ids=["labels unread", "labels transformed", "no image", "channels last"],
)
def test_what_cannot_be_derived_is_asked_for_by_name(train, name):
    assert_refused(rf"set model\.{name}, or give it the attribute", from_data, LENET, data(train))


@pytest.mark.parametrize("name", ["vocabulary_size", "max_length"])
def test_model_too_short_for_its_text_is_refused(name):
    text = SimpleNamespace(**{"vocabulary_size": 50, "max_length": 16, name: 20})
    for given in (20, 30):
        assert name not in from_data(Target("model", "pipetrain.zoo.models.gpt.build", {name: given}), text)
    with pytest.raises(ConfigError, match=rf"model.{name}=19: .*model.{name}=20"):
        from_data(Target("model", "pipetrain.zoo.models.gpt.build", {name: 19}), text)


def test_model_of_text_learns_of_its_data_set_what_is_not_set():
    text = SimpleNamespace(vocabulary_size=50, max_length=16)
    target = Target("model", "pipetrain.zoo.models.gpt.build", {"vocabulary_size": None})
    assert from_data(target, text) == {"vocabulary_size": 50, "max_length": 16}
    assert_refused(r"model.vocabulary_size is not set.*=10000", from_data, target, SimpleNamespace())


def test_compiled_code_is_kept_where_nobody_else_can_write(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/chosen")
    build_arithmetic(TrainConfig(compile=True))
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "/chosen"
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    build_arithmetic(TrainConfig())
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ
    build_arithmetic(TrainConfig(compile=True))
    folder = tmp_path / "pipetrain" / "inductor"
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(folder)
    assert folder.stat().st_mode & 0o777 == 0o700


def test_cache_of_the_compiler_that_cannot_be_made_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    assert_refused(r"train.compile=true: .*TORCHINDUCTOR_CACHE_DIR", build_arithmetic, TrainConfig(compile=True))


X = (torch.linspace(-1, 1, 16).view(4, 4),)
BF16 = ComputeOptions("bf16")


class Asking(nn.Module):
    """Does something with the dtype that its first layer returns."""

    def __init__(self, function):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)
        self.function = function

    def forward(self, x):
        hidden = self.first(x)
        return self.last(self.norm(self.function(hidden.float(), hidden.dtype)))


def test_precision_casts_pass_and_leave_model_unchanged():
    chain = chain_of(Asking(lambda x, dtype: x.to(dtype)), X)
    check_cut(chain, X, None, 0, BF16)
    assert chain.module.norm.num_batches_tracked == 0
    assert chain.module.training


def test_forward_that_does_something_else_for_a_dtype_is_refused():
    chain = chain_of(Asking(lambda x, dtype: x * 2 if dtype == torch.float32 else x), X)
    assert_refused(r"^train.precision=bf16: .*Asking .*fp32 works", check_cut, chain, X, None, 0, BF16)


class Padded(nn.Module):
    """An encoder of padded sequences, whose mean also counts padded positions."""

    def __init__(self, *, nested):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.table, self.head = nn.Embedding(10, 8), nn.Linear(8, 2)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested)

    def forward(self, ids):
        return self.head(self.encoder(self.table(ids), src_key_padding_mask=ids == 0).mean(1))


@pytest.mark.parametrize("nested", [False, True])
def test_evaluation_unlike_that_of_the_whole_module_is_noted(nested):
    ids = torch.arange(5 * 6).reshape(5, 6) % 9 + 1
    ids[2:, 3:] = 0
    notes = check_cut(chain_of(Padded(nested=nested), (ids,)), (ids,), None, 0)
    assert [note.partition(":")[0] for note in notes] == ["warning"] * nested
    assert all("Padded itself" in note and "enable_nested_tensor=False" in note for note in notes)


class RandomInEvaluation(nn.Module):
    """Draws as variational autoencoders and Monte Carlo dropout do."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)
        self.fails = False

    def forward(self, x):
        if self.fails and not self.training:
            raise NotImplementedError
        hidden = nn.functional.dropout(self.first(x), 0.5, training=True)
        return self.last(hidden + torch.randn_like(hidden))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("fails", [False, True])
def test_random_or_failing_evaluation_is_no_difference(fails, precision):
    x = torch.randn(5, 4)
    chain = chain_of(RandomInEvaluation(), (x,))
    chain.module.fails = fails
    assert check_cut(chain, (x,), None, 0, ComputeOptions(precision=precision)) == []


def test_model_takes_open_settings_from_dataset():
    dataset = build_data(settings("gpipe")).dataset
    assert build_model(settings("gpipe"), dataset).layers[-1].out_features == dataset.classes == 4
    own = settings("gpipe", model={"_target_": "support.small_model.build", "classes": 7})
    assert build_model(own, dataset).layers[-1].out_features == 7


def test_initial_weights_depend_on_the_seed_alone():
    dataset = build_data(settings("gpipe")).dataset
    first = build_model(settings("gpipe", seed=1), dataset).module.state_dict()
    torch.rand(3)
    again = build_model(settings("gpipe", seed=1), dataset).module.state_dict()
    other = build_model(settings("gpipe", seed=2), dataset).module.state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["0.weight"], other["0.weight"])


class DrawsElsewhere(nn.Sequential):
    """Draws its weights with numpy, and a permutation with Python's own generator."""

    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 4))
        self.order = random.sample(range(50), 50)
        self[1].weight.data = torch.from_numpy(np.random.randn(4, 64)).float()


def test_seed_draws_initial_weights_of_all_default_generators():
    dataset = build_data(settings("gpipe")).dataset
    model = {"_target_": f"{__name__}.DrawsElsewhere"}
    first, again, other = (build_model(settings("gpipe", seed=seed, model=model), dataset).module for seed in (1, 1, 2))
    assert torch.equal(first[1].weight, again[1].weight)
    assert first.order == again.order
    assert not torch.equal(first[1].weight, other[1].weight)
    assert first.order != other.order
