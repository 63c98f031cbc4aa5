"""Stored runs that name a class by a path that it no longer has."""

from pipetrain.config import moved
from pipetrain.config.instantiate import Target


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
