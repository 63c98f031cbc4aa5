"""Where a run comes from."""

import shutil
import subprocess
import sys

import pytest
import torch

from pipetrain import __version__
from pipetrain.runner.training.provenance import provenance


def git(folder, *words):
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *words], cwd=folder, check=True)


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_commit_is_that_of_the_folder_the_run_is_started_in(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    git(tmp_path, "init", "-q")
    (tmp_path / "model.py").write_text("width = 1")
    git(tmp_path, "add", "model.py")
    git(tmp_path, "commit", "-qm", "first")
    (tmp_path / "notes.txt").write_text("not tracked")
    clean = provenance("cpu")
    assert len(clean["git_commit"]) == 40
    assert clean["git_dirty"] is False
    (tmp_path / "model.py").write_text("width = 2")
    assert provenance("cpu")["git_dirty"] is True


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
@pytest.mark.parametrize(
    ("setting", "command"),
    [("core.fsmonitor", "touch {}; false"), ("filter.x.clean", "sh -c 'touch {}; cat'"), ("diff.external", "touch {}")],
)
def test_commands_of_the_repository_are_not_run(tmp_path, monkeypatch, setting, command):
    git(tmp_path, "init", "-q", "repository")
    repository, ran = tmp_path / "repository", tmp_path / "ran"
    (repository / ".gitattributes").write_text("* filter=x")
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "first")
    git(repository, "config", setting, command.format(ran))
    (repository / ".gitattributes").touch()  # git looks at its content again
    monkeypatch.chdir(repository)
    assert provenance("cpu")["git_dirty"] is False
    (repository / ".gitattributes").write_text("*.py filter=x")
    assert provenance("cpu")["git_dirty"] is True
    assert not ran.exists()


def test_run_outside_a_repository_has_no_commit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    found = provenance("cpu")
    assert (found["git_commit"], found["git_dirty"]) == (None, None)


def test_run_without_git_has_no_commit(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert provenance("cpu")["git_commit"] is None


def test_versions_machine_and_command_are_recorded(monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "pipetrain", "run", "train.target={top1: 66}"])
    found = provenance("cpu")
    assert found["command"] == "python -m pipetrain run 'train.target={top1: 66}'"
    assert (found["pipetrain_version"], found["torch_version"]) == (__version__, torch.__version__)
    assert found["cpu"]
    assert found["cores"] >= 1
    assert found["gpus"] == []
