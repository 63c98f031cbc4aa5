"""A language model from its first step to its export, as a user has it."""

import json

import pytest
import torch
from support.cli import pipetrain_here, run_here
from support.refusals import assert_refused
from support.texts import prose

import pipetrain
from pipetrain.zoo.models import gpt

TINY = (
    "model=gpt", "model.layers=2", "model.width=16", "model.heads=2", "optimizer.lr=0.01", "threads=1",
    "dataset=text_file", "dataset.vocabulary_size=300", "dataset.positions=16", "train.batch_size=4",
    "train.max_steps=20",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    (folder / "novel.txt").write_text(prose(400), encoding="utf-8")
    (folder / "other.txt").write_text(prose(400, seed=1).upper(), encoding="utf-8")
    return folder


@pytest.mark.slow
def test_language_model_trains_alike_in_both_executors(folder):
    hashes = {}
    for method, stages in (("pipedream", 2), ("pipeoptim", 4)):
        for executor in ("distributed", "simulated"):
            path = folder / f"{method}-{executor}"
            chosen = (f"method={method}", f"partition.stages={stages}", f"executor={executor}")
            done = run_here(path, *TINY, f"dataset.path={folder / 'novel.txt'}", *chosen)
            found = json.loads((path / "summary.json").read_text())
            hashes.setdefault(method, set()).add((found["weights_sha256"], found["loss_sha256"]))
            whose = "simulator_" if executor == "simulated" else ""
            assert found[f"{whose}tokens_per_second"] == pytest.approx(16 * found[f"{whose}samples_per_second"])
            assert found["tokens"] == 20 * 4 * 16
            assert found["final"]["perplexity"] < 250
            assert "tokens/s" in done.stdout
    assert all(len(each) == 1 for each in hashes.values())
    trained = folder / "pipedream-simulated"
    _refusals(folder, trained)
    _export(folder, trained)


def _refusals(folder, trained):
    refused = pipetrain_here("eval", str(trained), f"dataset.path={folder / 'other.txt'}", cwd=folder)
    assert refused.returncode == 2
    assert "dataset: its vocabulary" in refused.stderr
    (folder / "novel.txt").write_text(prose(400, seed=2).upper(), encoding="utf-8")
    assert_refused("dataset: its vocabulary", lambda: pipetrain.load(trained).dataset())
    on = (*TINY, f"dataset.path={folder / 'novel.txt'}", "method=pipedream", "partition.stages=2", "executor=simulated")
    refused = run_here(folder / "resumed", *on, f"resume={trained}", "train.max_steps=30", code=2)
    assert "dataset: its vocabulary" in refused.stderr


def _export(folder, trained):
    assert pipetrain_here("export", str(trained), "-o", "weights.pt", cwd=folder).returncode == 0
    state = torch.load(folder / "weights.pt")
    model = gpt.build(len(state["transformer.wte.weight"]), 16, layers=2, width=16, heads=2)
    model.module.load_state_dict(state)
