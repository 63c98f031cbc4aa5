"""Exports of trained models, loaded into the plain models of the libraries."""

from dataclasses import replace

import pytest
import torch
from support import library_models
from support.worker_pool import job, plan_of, simulated

from pipetrain.data.libraries import torchvision_import
from pipetrain.runner.training.checkpoint.store import Selection
from pipetrain.runner.training.components.data import build_data
from pipetrain.runner.training.components.model import build_model
from pipetrain.runner.training.finished.export import export
from pipetrain.runner.training.whole_model import load_whole_model
from pipetrain.zoo.torchvision_shim import models as torchvision_models

IMAGES = {
    "_target_": "pipetrain.zoo.data.images.synthetic.synthetic_images",
    "channels": 3,
    "classes": 4,
    "size": 32,
    "train": 8,
    "eval": 2,
}
BERT = "transformers/BertForSequenceClassification"
TEXT = {"_target_": "pipetrain.zoo.data.text.text_files.text_file", "tokens": "characters", "vocabulary_size": None}


def gpt2(vocabulary_size):
    """A small one of transformers'."""
    torchvision_import.install()
    transformers = pytest.importorskip("transformers")
    size = transformers.GPT2Config(vocab_size=vocabulary_size, n_positions=6, n_embd=8, n_layer=2, n_head=2)
    return transformers.GPT2LMHeadModel(size)


def cases(text):
    """Name -> changes of the tiny run, and the plain model for its data set."""
    words = {"_target_": "pipetrain.engine.losses.TokenCrossEntropy"}
    small = {"_target_": "pipetrain.zoo.models.gpt.build", "layers": 2, "width": 8, "heads": 2, "tied": True}
    return {
        "resnet18": (
            {"model": {"_target_": "pipetrain.zoo.models.torchvision_models.resnet", "depth": 18}, "dataset": IMAGES},
            lambda data: torchvision_models.resnet18(num_classes=data.classes),
        ),
        "gpt2": (
            {"model": small, "dataset": {**TEXT, "path": str(text), "positions": 6}, "loss": words},
            lambda data: gpt2(data.vocabulary_size),
        ),
        "bert": (
            {
                "model": {"_target_": "support.library_models.build", "name": BERT},
                "dataset": {"_target_": "support.library_models.data", "name": BERT},
            },
            lambda _data: library_models.build(BERT),
        ),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "gpt2", "bert"])
@torch.no_grad()
def test_export_loads_into_plain_model_with_equal_scores(tmp_path, name):
    text = tmp_path / "novel.txt"
    text.write_text("It is a truth universally acknowledged.\n" * 12)
    changes, plain_model = cases(text)[name]
    train = {"epochs": 1, "batch_size": 4, "max_steps": 2}
    made = job(tmp_path / "run", "gpipe", 2, **changes, train=train)
    data = build_data(made.settings)
    layers = len(build_model(made.settings, data.dataset))
    with torch.enable_grad():
        simulated(replace(made, plan=plan_of([(0, layers // 2), (layers // 2, layers)])))
    export(Selection(made.run.path), tmp_path / "w.pt", "torch")
    theirs = plain_model(data.dataset).eval()
    theirs.load_state_dict(torch.load(tmp_path / "w.pt"))
    inputs = data.example
    outputs = theirs(*inputs)
    scores = outputs if isinstance(outputs, torch.Tensor) else outputs.logits
    ours = load_whole_model(made.settings, data.dataset, Selection(made.run.path).checkpoint())(*inputs)
    torch.testing.assert_close(ours, scores)
