"""Files that are there as a whole or not at all."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from pipetrain.tracking.files import new_folder, write_whole


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


def test_those_who_ask_for_the_same_folder_at_once_get_one_each(tmp_path):
    wanted = tmp_path / "outputs" / "2026-01-02" / "03-04-05"
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(new_folder, [wanted] * 8))
    names = {"03-04-05", *(f"03-04-05-{number}" for number in range(2, 9))}
    assert {folder.name for folder in folders} == names == {path.name for path in wanted.parent.iterdir()}
