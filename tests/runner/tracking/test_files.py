"""Files that are there as a whole or not at all."""

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pipetrain.runner.tracking import files
from pipetrain.runner.tracking.files import new_folder, write_whole


def test_write_that_fails_leaves_the_old_file_alone_and_names_it(tmp_path, monkeypatch):
    path = tmp_path / "summary.json"
    write_whole(path, "old")

    def fails(_descriptor):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fails)
    for name in ("summary.json", "plan.json"):
        with pytest.raises(OSError, match="Input/output error") as caught:
            write_whole(tmp_path / name, "new")
        assert (caught.value.errno, caught.value.filename) == (errno.EIO, str(tmp_path / name))
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_those_who_ask_for_the_same_folder_at_once_get_one_each(tmp_path):
    wanted = tmp_path / "outputs" / "2026-01-02" / "03-04-05"
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(new_folder, [wanted] * 8))
    names = {"03-04-05", *(f"03-04-05-{number}" for number in range(2, 9))}
    assert {folder.name for folder in folders} == names == {path.name for path in wanted.parent.iterdir()}


NAMES = ("config.yaml", "metrics.jsonl", "summary.json", "checkpoints")


class KilledError(BaseException):
    """In the place of a kill: nothing that runs after it may tidy up."""


@pytest.fixture
def folder(tmp_path):
    for name in NAMES[:3]:
        (tmp_path / name).write_text(name)
    (tmp_path / "checkpoints" / "step-00000004").mkdir(parents=True)
    (tmp_path / "notes.txt").write_text("mine")
    return tmp_path


def killed_at(monkeypatch, method, nth):
    """Makes the nth call of a method of Path the last thing that happens."""
    true, calls = getattr(Path, method), []

    def killing(self, *arguments, **options):
        calls.append(self)
        if len(calls) == nth:
            raise KilledError
        return true(self, *arguments, **options)

    monkeypatch.setattr(Path, method, killing)


def all_files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not any(path.glob("*")))


ASIDE = sorted(["notes.txt", *(f"earlier-1/{name}" for name in NAMES[:3]), "earlier-1/checkpoints/step-00000004"])


def test_files_of_an_earlier_run_move_and_others_stay(folder):
    assert files.archive_files(folder, NAMES) == folder / "earlier-1"
    assert all_files(folder) == ASIDE
    assert files.archive_files(folder, NAMES) is None
    (folder / "summary.json").write_text("second")
    assert files.archive_files(folder, NAMES) == folder / "earlier-2"


@pytest.mark.parametrize("nth", range(1, 5))
def test_files_left_by_a_kill_while_they_move_are_moved_by_the_next_run(folder, monkeypatch, nth):
    with monkeypatch.context() as patch:
        killed_at(patch, "rename", nth)
        with pytest.raises(KilledError):
            files.archive_files(folder, NAMES)
    files.archive_files(folder, NAMES)
    assert [len([*folder.glob(f"earlier-*/{name}")]) for name in NAMES] == [1] * len(NAMES)
    assert not any((folder / name).exists() for name in NAMES)


def test_single_checkpoints_move_with_their_folder(folder):
    files.archive_files(folder, ["checkpoints/step-00000004"])
    assert (folder / "earlier-1" / "checkpoints" / "step-00000004").is_dir()
    assert (folder / "checkpoints").is_dir()
