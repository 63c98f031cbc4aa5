"""What is found in a data set before any process starts."""

import contextlib
import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from support.one_run import EVEN, prepared
from support.worker_pool import settings

from pipetrain.engine.data.fingerprint import CHANGES
from pipetrain.engine.errors import ConfigError, RunError
from pipetrain.runner.config.instantiate import Target
from pipetrain.runner.tracking.run_directory import RunDirectory
from pipetrain.runner.training.preflight import prepare
from pipetrain.runner.training.worker import build_data_in_worker, build_in_worker
from pipetrain.zoo.data.images.common import LabelledImages


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
    with pytest.raises(ConfigError, match=f"the image {damaged} cannot be decoded"):
        prepare(chosen, RunDirectory(folder / "run"))


def test_model_with_fewer_outputs_than_folders_is_refused(pictures):
    folder, chosen = pictures
    small = replace(chosen.model, target=Target("model", "pipetrain.zoo.models.small_images.lenet5", {"classes": 1}))
    with pytest.raises(ConfigError, match=r"1 outputs, and the data object says that there are 2 classes; .*=2 works"):
        prepare(replace(chosen, model=small), RunDirectory(folder / "run"))


def test_files_are_read_once_to_try_them_and_their_labels(pictures, monkeypatch):
    folder, chosen = pictures
    read = []

    def sample(split, index):
        if "/test/" in split.images.paths[index]:
            read.append(index)
        return torch.zeros(3, 16, 16), 2 if len(read) == 8 else 1

    monkeypatch.setattr(LabelledImages, "__getitem__", sample)
    monkeypatch.setattr("pipetrain.runner.training.components.data.known_labels", lambda _split: None)
    with pytest.raises(ConfigError, match="sample 7 of `eval` has the label 2, and the model's 2 outputs"):
        prepare(chosen, RunDirectory(folder / "run"))
    assert read == [*range(8)]


class Vectors:
    """Eight samples of so many numbers, with a label of this type."""

    def __init__(self, width, dtype=torch.int64):
        self.width, self.dtype = width, dtype

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.full((self.width,), float(index)), torch.tensor(index % 2, dtype=self.dtype)


def vectors(width=4, dtype="int64"):
    return SimpleNamespace(train=Vectors(4), eval=Vectors(width, getattr(torch, dtype)))


def linear():
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"width": 8},
            r"the model fails on `eval`: .*; its inputs are float32 \(2, 8\), .* `train` float32 \(2, 4\)$",
        ),
        ({"dtype": "float64"}, r"loss\._target_=.*targets float64 \(2,\) of the data set"),
    ],
)
def test_unfit_evaluation_set_is_refused_before_start(tmp_path, options, message):
    parts = {"dataset": {"_target_": f"{__name__}.vectors", **options}, "model": {"_target_": f"{__name__}.linear"}}
    with pytest.raises(ConfigError, match=message):
        prepared(tmp_path, "gpipe", **parts)


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
    built = build_in_worker(made, build_data_in_worker(made, torch.device("cpu")))
    built.data.check_as_prepared(made.data)
    other = prepared(tmp_path, seed=4, dataset={"train": 21}).data
    with pytest.raises(RunError, match="the number of samples of its `train` is 22 here, but 21 when the run was pre"):
        built.data.check_as_prepared(other)
