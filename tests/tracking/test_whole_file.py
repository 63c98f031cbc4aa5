"""Files that are there as a whole or not at all."""

import os

import pytest

from pipetrain.tracking.whole_file import write_whole


def test_file_is_replaced_and_nothing_is_left_beside_it(tmp_path):
    path = tmp_path / "summary.json"
    write_whole(path, "old")
    write_whole(path, "new\n")
    assert path.read_text() == "new\n"
    assert list(tmp_path.iterdir()) == [path]


def test_write_that_fails_leaves_the_old_file_alone(tmp_path, monkeypatch):
    path = tmp_path / "summary.json"
    write_whole(path, "old")

    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
