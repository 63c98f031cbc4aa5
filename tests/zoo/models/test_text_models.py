"""Models of texts, translations and videos under PipeDream and PipeOptim: both executors have equal bits."""

from dataclasses import replace
from itertools import pairwise

import pytest
from support.equal_bits import both_ways
from support.worker_pool import job, phase, plan_of

STAGES = 4
PHASES = [phase("pipedream", steps=10), phase("pipeoptim", steps=10)]
GPT = {"_target_": "pipetrain.zoo.models.gpt.build", "layers": 2, "width": 8, "heads": 2, "dropout": 0.1}
TRANSFORMER = {"layers": 2, "width": 16, "feedforward": 24, "heads": 2, "dropout": 0.1}
DATA = {
    "novel": {
        "_target_": "pipetrain.zoo.data.text.text_files.text_file",
        "positions": 6,
        "tokens": "characters",
        "vocabulary_size": None,
    },
    "videos": {
        "_target_": "pipetrain.zoo.data.video.moving_shapes.synthetic_moving_shapes",
        "train": 16,
        "eval": 2,
        "frames": 3,
    },
    # minibatches whose sentences differ in length and number
    "dates": {
        "_target_": "pipetrain.zoo.data.translation.synthetic.synthetic_en_de",
        "train": 60,
        "eval": 6,
        "vocabulary_size": 300,
        "batch_tokens": 320,
    },
    "reviews": {"_target_": "pipetrain.zoo.data.text.table.labelled_table"},
}
MODELS = {
    "gpt": (GPT, 6, "novel"),
    "gpt2": ({**GPT, "tied": True, "untie": True}, 6, "novel"),
    "s2vt": ({"_target_": "pipetrain.zoo.models.s2vt.build", "hidden": 6, "embedding": 5, "dropout": 0.1}, 5, "videos"),
    "transformer": ({"_target_": "pipetrain.zoo.models.transformer.build", **TRANSFORMER}, 13, "dates"),
    "gnmt": ({"_target_": "pipetrain.zoo.models.gnmt.build", "layers": 4, "width": 16, "dropout": 0.1}, 7, "dates"),
    "residual_lstm": (
        {"_target_": "pipetrain.zoo.models.residual_lstm.build", "embedding": 6, "hidden": 5, "layers": 5},
        7,
        "reviews",
    ),
}
"""Name -> the model, its layers, and the data set."""


def files(folder):
    """Settings of data sets -> the files that they name."""
    (folder / "novel.txt").write_text("It is a truth universally acknowledged.\n" * 12)
    reviews = [f"{'good' if i % 2 else 'bad'} {'very ' * (i % 7)}film\t{i % 2}\n" for i in range(44)]
    (folder / "reviews.tsv").write_text("text\tlabel\n" + "".join(reviews))
    return {"novel": {"path": str(folder / "novel.txt")}, "reviews": {"file": str(folder / "reviews.tsv")}}


def twenty_steps(folder, name, named):
    """Ten under each method, the layers spread evenly."""
    model, layers, data = MODELS[name]
    loss = "CrossEntropy" if data == "reviews" else "TokenCrossEntropy"
    smoothing = {"label_smoothing": 0.1} if data == "dates" else {}
    made = job(
        folder / name,
        "pipedream",
        STAGES,
        model=model,
        dataset={**DATA[data], **named.get(data, {})},
        loss={"_target_": f"pipetrain.engine.losses.{loss}", **smoothing},
        optimizer={"_target_": "torch.optim.AdamW", "lr": 1e-2},
        train={"epochs": 9, "batch_size": 4, "microbatches": 2, "max_steps": 20},
        eval={"every_epochs": 9},
        phases=PHASES,
    )
    cuts = [layers * r // STAGES for r in range(STAGES + 1)]
    return replace(made, plan=plan_of(list(pairwise(cuts))))


@pytest.mark.slow
def test_models_of_texts_have_equal_bits_in_both_executors(tmp_path):
    pairs = both_ways([twenty_steps(tmp_path, name, files(tmp_path)) for name in MODELS])
    assert all(ours["steps"] == 20 for ours, _ in pairs)
