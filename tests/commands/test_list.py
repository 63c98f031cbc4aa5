import json
import runpy
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from support.cli import environment

from pipetrain import cli
from pipetrain.runner.config.choices import papers_folder
from pipetrain.runner.config.reference import groups
from pipetrain.runner.config.schema import config_dir


def listed(capsys, *words):
    assert cli.carry_out(["list", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_list_has_a_row_for_every_file_of_every_group(capsys):
    found = listed(capsys)
    assert len(found) == len(groups()) + 1  # formats of messages are chosen for each direction
    for kind, rows in found.items():
        group = {"losses": "loss"}.get(kind, kind.removesuffix("s"))
        assert rows
        assert all(row["name"] and row["summary"] for row in rows)
        files = {path.stem for path in (config_dir() / group).rglob("*.yaml")} - {"custom"}
        assert {row["name"].split("/")[-1] for row in rows} == files
    assert {"resnet20", "vgg16", "lenet5"} <= {row["name"] for row in found["models"]}
    assert listed(capsys, "methods") == listed(capsys, "method") == found["methods"]
    assert cli.carry_out(["list", "optimizers"]) == 0
    assert "sgdm" in capsys.readouterr().out


def test_group_that_does_not_exist_is_answered_with_the_nearest(capsys):
    assert cli.carry_out(["list", "datset"]) == 2
    error = "pipetrain list datset: no such list; did you mean dataset or datasets?"
    assert capsys.readouterr().err == f"pipetrain: error: {error}\n"


def test_models_are_listed_with_task_dataset_and_paper_settings(capsys, monkeypatch):
    monkeypatch.setattr("pipetrain.commands.list._sizes", lambda *_: {})
    rows = {row["name"]: row for row in listed(capsys, "models")}
    assert rows["alexnet"]["task"] == "image classification"
    assert rows["alexnet"]["dataset"] == "fashion_mnist_mini"
    assert rows["alexnet"]["paper"].startswith("dataset=tiny_imagenet dataset.size=224")
    assert cli.carry_out(["list", "models"]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("alexnet ")
    assert rest[0] == "    image classification; by default dataset=fashion_mnist_mini"
    assert rest[1] == f"    in its paper {rows['alexnet']['paper']}"


def test_experiments_are_listed_with_place_in_paper_and_cost(capsys):
    assert cli.carry_out(["list", "experiments", "--config-dir", str(papers_folder())]) == 0
    lines = capsys.readouterr().out.splitlines()
    details = {line.split()[0]: text.strip() for line, text in pairwise(lines) if text.startswith("    ")}
    assert details["zhang/table5_resnet56"] == (
        "Zhang & Abdelrahman, table 5; app. B; 3 runs of about 2 h on 2 GPUs; the small scale 8 min on two cores"
    )
    assert details["zhang/table6_resnet56"] == "Zhang & Abdelrahman, table 6; app. B; 3 runs of about 3 h on 2 GPUs"
    rows = {row["name"]: row for row in listed(capsys, "experiments", "--config-dir", str(papers_folder()))}
    assert rows["zhang/table5_resnet56"]["minutes"] == "8"


def test_own_experiments_are_listed_with_where_those_of_papers_are(capsys, monkeypatch):
    monkeypatch.chdir(papers_folder().parents[1])
    for words in (["experiments"], []):
        assert cli.carry_out(["list", *words]) == 0
        last = capsys.readouterr().out.splitlines()[-1]
        assert last.strip() == "Those of papers: pipetrain list experiments --config-dir papers/conf"
    assert [row["name"] for row in listed(capsys, "experiments")] == ["comparison", "demo", "multi30k"]
    monkeypatch.setattr("pipetrain.runner.config.choices.papers_folder", lambda: None)
    assert cli.carry_out(["list", "experiments"]) == 0
    assert "papers/conf of a checkout" in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.slow
def test_list_builds_models_only_for_their_sizes(capsys, tmp_path):
    rows = listed(capsys, "models")
    assert all(row["task"] and row["parameters"] > 0 and row["layers"] > 0 for row in rows)
    assert {row["name"]: row["parameters"] for row in rows}["lenet5"] == 61_706, "for the gray images that it brings"
    script = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "write_models_page.py"))
    text = script["PAGE"].read_text(encoding="utf-8")
    assert text == script["page"](text, rows), "run scripts/write_models_page.py"
    code = "import sys, pipetrain.cli as c; c.carry_out(['list']); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_sizes_follow_summary_and_model_rows(capsys, monkeypatch):
    monkeypatch.setattr("pipetrain.commands.list._sizes", lambda *_: {"parameters": 61_706, "layers": 7})
    assert cli.carry_out(["list", "models", "--sizes"]) == 0
    assert "linear layers (Krizhevsky 2014)  [7 layers, 61,706 parameters]" in capsys.readouterr().out
    assert all((row["parameters"], row["layers"]) == (61_706, 7) for row in listed(capsys, "models"))


def test_sizes_of_what_has_none_are_refused(capsys):
    assert cli.carry_out(["list", "losses", "--sizes"]) == 2
    assert "pipetrain list models --sizes" in capsys.readouterr().err


def test_choices_in_user_folder_are_listed_last(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("pipetrain.commands.list._sizes", lambda *_: {})  # building all models takes long
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.yaml").write_text("# A model of mine\n_target_: mylib.build\n")
    rows = listed(capsys, "models", f"--config-dir={tmp_path}")
    assert rows[-1] == {"name": "mine", "summary": "A model of mine"}
    assert cli.carry_out(["list", "--config-dir", str(tmp_path / "nowhere")]) == 2
    assert "the folder does not exist" in capsys.readouterr().err


def test_narrow_terminal_folds_lines(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert cli.carry_out(["list", "methods"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 60
    assert any(line.startswith("      ") for line in lines)
