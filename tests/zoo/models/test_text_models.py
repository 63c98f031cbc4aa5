"""GPT-2's form and S2VT under PipeDream and PipeOptim; the other models of texts have tests of their own."""

from dataclasses import replace
from itertools import pairwise

import pytest
from support.equal_bits import both_ways
from support.worker_pool import job, phase, plan_of

PHASES = [phase("pipedream", steps=10), phase("pipeoptim", steps=10)]
GPT = {"_target_": "pipetrain.zoo.models.gpt.build", "layers": 2, "width": 8, "heads": 2, "dropout": 0.1}
VIDEOS = {
    "_target_": "pipetrain.zoo.data.video.moving_shapes.synthetic_moving_shapes",
    "train": 16,
    "eval": 2,
    "frames": 3,
}
S2VT = {"_target_": "pipetrain.zoo.models.s2vt.build", "hidden": 6, "embedding": 5, "dropout": 0.1}
MODELS = {"gpt": (GPT, 6), "gpt2": ({**GPT, "tied": True, "untie": True}, 6), "s2vt": (S2VT, 5)}
"""Name -> the model and its layers."""


def twenty_steps(folder, name, stages, text):
    """Ten under each method, the layers spread evenly."""
    content, layers = MODELS[name]
    novel = {"_target_": "pipetrain.zoo.data.text.text_files.text_file", "path": str(text), "positions": 6}
    cuts = [layers * r // stages for r in range(stages + 1)]
    made = job(
        folder / name,
        "pipedream",
        stages,
        model=content,
        dataset=VIDEOS if name == "s2vt" else {**novel, "tokens": "characters", "vocabulary_size": None},
        loss={"_target_": "pipetrain.engine.losses.TokenCrossEntropy"},
        optimizer={"_target_": "torch.optim.AdamW", "lr": 1e-2},
        train={"epochs": 9, "batch_size": 4, "microbatches": 2, "max_steps": 20},
        eval={"every_epochs": 9},
        phases=PHASES,
    )
    return replace(made, plan=plan_of(list(pairwise(cuts))))


@pytest.mark.slow
def test_models_of_texts_have_equal_bits_in_both_executors(tmp_path):
    stages = 4
    text = tmp_path / "novel.txt"
    text.write_text("It is a truth universally acknowledged.\n" * 12)
    pairs = both_ways([twenty_steps(tmp_path, name, stages, text) for name in MODELS])
    assert all(ours["steps"] == 20 for ours, _ in pairs)
