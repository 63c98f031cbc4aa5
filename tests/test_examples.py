"""The examples run, and print what they say."""

import importlib
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.texts import prose
from torch.utils.data import default_collate

import pipetrain
from pipetrain import Loader, chain_of

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def test_example_of_two_stages_learns_and_shows_stale_weights(capsys):
    runpy.run_path(str(EXAMPLES / "two_stages.py"), run_name="__main__")
    out = capsys.readouterr().out
    losses = [float(loss) for loss in re.findall(r"^epoch \d+  loss ([\d.]+)$", out, re.MULTILINE)]
    assert len(losses) == 5
    assert losses[-1] < 0.7 * losses[0]
    assert "stage 0  staleness forward [1], backward [1], weight versions 2" in out
    assert "stage 1  staleness forward [0], backward [0], weight versions 1" in out


def test_example_of_a_text_is_drawn_by_the_scores_of_the_trained_model(tmp_path, capsys, monkeypatch):
    (tmp_path / "novel.txt").write_text(prose(40), encoding="utf-8")
    words = (
        "model=gpt", "model.layers=1", "model.width=8", "model.heads=1", "dataset=text_file", "dataset.positions=8",
        f"dataset.path={tmp_path / 'novel.txt'}", "train.max_steps=1", "partition.stages=1", "executor=simulated",
    )  # fmt: skip
    run = pipetrain.run(words, path=tmp_path / "run", progress=False)

    def drawn(*flags):
        monkeypatch.setattr("sys.argv", ["sample_text.py", str(run.path), "--prompt", "The cat", *flags])
        runpy.run_path(str(EXAMPLES / "sample_text.py"), run_name="__main__")
        return capsys.readouterr().out.removesuffix("\n")

    vocabulary, model = run.dataset().vocabulary, run.model().eval()
    ids = vocabulary.encode("The cat").tolist()
    for _ in range(12):
        ids.append(int(model(torch.tensor([ids[-8:]]))[0, -1, : vocabulary.size].argmax()))
    likeliest = vocabulary.decode(ids)
    assert drawn("--length", "12", "--temperature", "0") == likeliest
    assert drawn("--length", "12", "--top-k", "1") == likeliest
    assert drawn("--length", "12", "--seed", "3") == drawn("--length", "12", "--seed", "3") != likeliest


@pytest.mark.slow
def test_example_of_the_engine_prints_equal_hashes_simulated_and_under_torchrun():
    script = str(EXAMPLES / "engine_torchrun.py")
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone")
    printed = [
        subprocess.run([sys.executable, *launcher, script], capture_output=True, text=True, check=True).stdout
        for launcher in ((), torchrun)
    ]
    assert printed[0] == printed[1]
    losses, _evaluation, staleness, weights = printed[0].splitlines()
    first, *_, last = map(float, losses.split()[1:])
    assert last < first / 2
    assert staleness == "staleness [[1], [0]]"
    assert re.fullmatch(r"weights [0-9a-f]{64}", weights)


@pytest.fixture
def example(monkeypatch):
    """Imports an example."""
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module


def test_language_model_example_relays_embedding_and_scores(example):
    module = example("next_letter")
    data, loss = module.Letters(), module.NextLetter(first=8)
    letters, target = default_collate([data.train[index] for index in range(3)])
    chain = module.build(data.classes)
    scores = chain(letters)
    assert scores.shape == (3, data.classes, 24)
    assert torch.equal(letters[:, 1:], target[:, :-1])
    assert loss.count(target) == 3 * 16
    assert loss.metrics(torch.nn.functional.one_hot(target, data.classes).transpose(1, 2), target) == {"letters": 48}
    assert {"embedding.weight", "head.linear.bias"} <= chain.module.state_dict().keys()


def test_example_of_a_regression_takes_dicts_of_numpy_arrays(example):
    module = example("regression")
    loader = Loader(module.data(samples=8).train, batch_size=4)
    ((time, frequency), (wave,)) = next(loader.samples(0))
    assert torch.allclose(wave, torch.sin(3 * time * frequency))
    assert chain_of(module.build())(time, frequency).shape == wave.shape


@pytest.mark.slow
def test_notebook_runs_and_its_stored_outputs_are_small(tmp_path):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    file = EXAMPLES / "three_methods.ipynb"
    assert file.stat().st_size < 100_000
    notebook = nbformat.read(file, as_version=4)
    nbclient.NotebookClient(notebook, timeout=250, resources={"metadata": {"path": str(tmp_path)}}).execute()
    printed = "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", ()))
    assert re.findall(r"^(\w+) +completed", printed, re.MULTILINE) == ["gpipe", "pipedream", "pipeoptim"]
    assert len(re.findall(r"^(?:conv|fc)\S+ +\d\.\d{3} +\d\.\d{3}$", printed, re.MULTILINE)) == 10


@pytest.mark.slow
def test_transformers_example_is_cut_and_counts_answers_only(example):
    pytest.importorskip("transformers")
    module = example("sorting")
    split = module.Digits(samples=8).train
    inputs, following = split.collate([split[index] for index in range(8)])
    model = module.build(width=16, depth=1)
    chain = chain_of(model, inputs)
    assert len(chain) > 1
    logits = chain(*inputs.values())
    assert torch.equal(logits, model(**inputs).logits)
    answers = module.Answers()
    assert answers.count(following) == sum(len(digits) + 1 for digits in split.digits)
    right = torch.nn.functional.one_hot(following.clamp(min=0), len(module.SYMBOLS)).float()
    assert answers.metrics(right, following) == {"symbols": answers.count(following)}
    assert answers(100 * right, following) < 1e-6
