"""`pipetrain eval`: what it prints, and how it ends."""

import json
import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import pytest
import torch
from support.worker_pool import job, simulated
from torch.utils.data import TensorDataset

from pipetrain import cli
from pipetrain.runner.training.components.data import build_data


class Failing:
    """A data set whose samples cannot be read."""

    def __len__(self):
        return 4

    def __getitem__(self, _index):
        raise KeyError("label")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The directory of a run that evaluated once."""
    made = job(tmp_path_factory.mktemp("run"), "pipedream", 2)
    summary = simulated(made)
    made.run.config.write_text(json.dumps(made.settings.stored))
    return made.run.path, summary["final"]


def test_table_or_json_of_a_run_that_is_trusted(run, capsys):
    path, final = run
    assert cli.carry_out(["eval", str(path), "--trust", "device=cpu"]) == 0
    table = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert (table["step"], table["loss"]) == ("12", f"{final['loss']:.4g}")
    assert cli.carry_out(["eval", "--json", "--trust", str(path)]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"] == pytest.approx(final, rel=1e-6)


def test_generated_texts_go_to_a_new_file(run, capsys, tmp_path):
    words = ["eval", str(run[0]), "--trust", "device=cpu", "--texts"]
    assert cli.carry_out([*words, str(tmp_path)]) == 2
    assert f"--texts {tmp_path}: exists; name a new file" in capsys.readouterr().err
    assert cli.carry_out([*words, str(tmp_path / "none" / "texts.jsonl")]) == 2
    assert "does not exist" in capsys.readouterr().err
    assert cli.carry_out([*words, str(tmp_path / "texts.jsonl")]) == 2
    assert "this evaluation generates none" in capsys.readouterr().err


def test_run_that_is_not_trusted_is_refused_in_one_line(run, capsys):
    assert cli.carry_out(["eval", str(run[0])]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_custom_dataset_error_is_one_line_with_type(run, capsys, monkeypatch):
    module = ModuleType("failing_data")
    module.build = lambda: SimpleNamespace(train=Failing(), eval=Failing(), channels=1, classes=4)
    monkeypatch.setitem(sys.modules, "failing_data", module)
    words = ["eval", str(run[0]), "--trust", "dataset=custom", "dataset._target_=failing_data.build"]
    assert cli.carry_out(words) == 1
    shown = capsys.readouterr().err
    assert "KeyError: 'label'" in shown
    assert shown.count("\n") == 1
    assert cli.carry_out([*words, "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_code_that_exits_does_not_choose_the_exit_code(run, capsys, monkeypatch):
    monkeypatch.setattr("pipetrain.runner.training.finished.evaluate.evaluate", lambda *_, **__: sys.exit(3))
    assert cli.carry_out(["eval", str(run[0])]) == 1
    assert "sys.exit(3) was called (" in capsys.readouterr().err


@pytest.fixture
def labels(monkeypatch):
    """A data set whose code numbers the labels anew, as one that takes them from a set does in each process."""
    order, module = [0, 1, 2, 3], ModuleType("labels_of_a_set")

    def build():
        images = torch.randn(16, 1, 8, 8, generator=torch.Generator().manual_seed(0))
        split = TensorDataset(images, torch.tensor([order[index % 4] for index in range(16)]))
        return SimpleNamespace(train=split, eval=split, channels=1, classes=4)

    module.build = build
    monkeypatch.setitem(sys.modules, "labels_of_a_set", module)
    return order


def test_evaluation_on_other_labels_than_those_of_the_run_is_refused(tmp_path, capsys, labels):
    made = job(tmp_path / "run", "pipedream", 2, dataset={"_target_": "labels_of_a_set.build"})
    made = replace(made, data=build_data(made.settings).fingerprints())
    simulated(made)
    made.run.config.write_text(json.dumps(made.settings.stored))
    words = ["eval", str(made.run.path), "--trust", "device=cpu"]
    assert cli.carry_out(words) == 0
    labels.reverse()
    capsys.readouterr()
    assert cli.carry_out(words) == 2
    error = capsys.readouterr().err
    assert "dataset: the target of sample 0 of its `eval` is 3, and was 0 for the run of" in error
    assert error.count("\n") == 1
    assert cli.carry_out([*words, "dataset.limit=null"]) == 0
