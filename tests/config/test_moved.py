"""Stored runs that name a class by a path that it no longer has."""

import json
import shutil

import pytest
from support.cli import TINY, pipetrain_here, run_here, summary

from pipetrain.config import moved
from pipetrain.config.instantiate import Target
from pipetrain.training.checkpoint import manifest, store


def test_every_present_path_exists():
    for path in moved.MOVED.values():
        Target("dataset", path, {}).parameters()


def test_targets_in_sections_and_lists_get_their_present_paths(monkeypatch):
    monkeypatch.setitem(moved.MOVED, "pipetrain.models.old.build", "pipetrain.models.small_images.lenet5")
    content = {"model": {"_target_": "pipetrain.models.old.build", "name": "pipetrain.models.old.build"}, "phases": [1]}
    assert moved.with_present_paths(content) == {
        "model": {"_target_": "pipetrain.models.small_images.lenet5", "name": "pipetrain.models.old.build"},
        "phases": [1],
    }


FORMER = ("pipetrain.models.lenet.build", "pipetrain.data.fashion.fashion_mnist_mini")


def write_former_paths(folder):
    """Gives a run directory and its checkpoints the paths that an older pipetrain wrote."""
    files = [folder / "config.yaml", *folder.glob(".hydra/*.yaml"), *folder.glob("checkpoints/*/config.json")]
    for file in files:
        text = file.read_text()
        for path in FORMER:
            text = text.replace(moved.MOVED[path], path)
        file.write_text(text)
    for stored in store.checkpoints(folder):
        manifest.write(stored, [manifest.FileEntry.of(stored / entry.name) for entry in manifest.entries(stored)])
        assert all(path in (stored / store.CONFIG).read_text() for path in FORMER)
    assert all(path in (folder / "config.yaml").read_text() for path in FORMER)


@pytest.mark.slow
def test_run_with_former_paths_evaluates_and_resumes_equally(tmp_path):
    whole, older = tmp_path / "whole", tmp_path / "older"
    run_here(whole, *TINY, "executor=simulated")
    shutil.copytree(whole, older)
    write_former_paths(older)
    done = pipetrain_here("eval", str(older), "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["metrics"] == pytest.approx(summary(whole)["final"], rel=1e-5)
    shutil.rmtree(older / "checkpoints" / "step-00000010")
    (older / "summary.json").unlink()
    run_here(tmp_path / "next", *TINY, "executor=simulated", f"resume={older}")
    run_here(older, *TINY, "executor=simulated", "resume=auto")
    assert summary(tmp_path / "next")["weights_sha256"] == summary(whole)["weights_sha256"]
    assert summary(older)["weights_sha256"] == summary(whole)["weights_sha256"]
