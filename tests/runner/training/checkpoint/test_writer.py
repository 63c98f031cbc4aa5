"""Checkpoints are written by all processes together, complete or not at all."""

import contextlib
import errno
import gc
import json
import os
import shutil
import threading
import time
import weakref
from pathlib import Path

import pytest
import torch
from support import checkpoints
from support.checkpoints import NAMES, NO_CONFIG, Processes

from pipetrain.engine.executors.hooks import RunHooks
from pipetrain.runner.tracking.run_directory import RunDirectory
from pipetrain.runner.training.checkpoint import contents, store, tensor_file
from pipetrain.runner.training.checkpoint.writer import (
    BackgroundWriter,
    Snapshot,
    Writer,
    remove_leftovers,
    replace_progress,
    save,
)


def written(run, step, value=1.0):
    return checkpoints.written(run, step, {"model.a": torch.full((3,), value)})


@pytest.fixture
def folder(tmp_path):
    """The newest of two checkpoints of a run."""
    written(tmp_path, 3)
    return written(tmp_path, 6)


def test_checkpoint_written_again_takes_the_place_of_the_first(tmp_path):
    for value in (1.0, 2.0):
        folder = written(tmp_path, 3, value)
    assert list(folder.parent.iterdir()) == [folder]
    assert store.problem(folder) is None
    assert contents.model_state(folder)["a"].tolist() == [2.0, 2.0, 2.0]


def test_checkpoint_that_cannot_take_its_place_leaves_the_first(tmp_path, monkeypatch):
    folder = written(tmp_path, 3, 1.0)
    rename = Path.rename

    def refuse(path, target):
        if path.suffix == ".partial":
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(OSError, match="Input/output error"):
        written(tmp_path, 3, 2.0)
    assert list(folder.parent.iterdir()) == [folder]
    assert contents.model_state(folder)["a"].tolist() == [1.0, 1.0, 1.0]


def test_leftovers_of_killed_run_are_removed_or_completed(tmp_path, folder):
    half = folder.with_name("step-00000009.partial")
    half.mkdir()
    (half / "process-0.safetensors").write_bytes(b"half")
    folder.with_name("step-00000003.old").mkdir()
    folder.with_name("step-00000002.old").mkdir()  # by a user, who did not want to go on from it
    folder.rename(folder.with_name(folder.name + ".partial"))  # killed just before it was renamed
    remove_leftovers(tmp_path)
    names = [path.name for path in sorted(folder.parent.iterdir())]
    assert names == ["step-00000002.old", "step-00000003", "step-00000006"]


def test_processes_write_a_file_each_and_one_manifest(tmp_path):
    folder = RunDirectory(tmp_path).checkpoint(1)
    parts = [{"model.a": torch.ones(2)}, {"model.b": torch.zeros(3)}]
    assert Processes(2).save(folder, parts) == [None, None]
    assert store.problem(folder) is None
    names = {"config.json", "process-0.safetensors", "process-1.safetensors", "progress.json"}
    assert json.loads((folder / "manifest.json").read_text())["files"].keys() == names
    assert {name: tensor.tolist() for name, tensor in contents.model_state(folder).items()} == {
        "a": [1.0, 1.0],
        "b": [0.0, 0.0, 0.0],
    }


def test_full_disk_of_one_process_fails_all_and_keeps_checkpoint(tmp_path, monkeypatch):
    folder = RunDirectory(tmp_path).checkpoint(1)
    parts = [{"model.a": torch.ones(2)}, {"model.b": torch.zeros(3)}]
    Processes(2).save(folder, parts)
    write = tensor_file.write

    def full(path, tensors):
        if path.name == "process-0.safetensors":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        write(path, tensors)

    monkeypatch.setattr(tensor_file, "write", full)
    errors = Processes(2).save(folder, parts)
    assert [error.errno for error in errors] == [errno.ENOSPC, errno.ENOSPC]
    assert all(error.filename.endswith("process-0.safetensors") for error in errors)
    assert store.problem(folder) is None
    assert list(folder.parent.iterdir()) == [folder]


@pytest.mark.parametrize("links", [True, False])
def test_replacing_progress_leaves_the_rest_unchanged(folder, monkeypatch, links):
    if not links:
        refusal = OSError(errno.EPERM, os.strerror(errno.EPERM))
        monkeypatch.setattr(Path, "hardlink_to", lambda *_: (_ for _ in ()).throw(refusal))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    replace_progress(folder, {**store.load_progress(folder), "metrics": {"loss": 1.0}})
    assert store.problem(folder) is None
    assert store.load_progress(folder)["metrics"] == {"loss": 1.0}
    changed = {path.name for path in folder.iterdir() if path.read_bytes() != before[path.name]}
    assert changed == {"progress.json", "manifest.json"}
    assert sorted(path.name for path in folder.parent.iterdir()) == ["step-00000003", "step-00000006"]


@pytest.mark.parametrize("ending", [".partial", ".old"])
def test_kill_during_progress_write_leaves_whole_checkpoint(tmp_path, folder, monkeypatch, ending):
    rename = Path.rename

    def killed(path, target):
        if path.suffix == ending or Path(target).suffix == ending:
            raise KeyboardInterrupt
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            replace_progress(folder, {**store.load_progress(folder), "metrics": {"loss": 1.0}})
    remove_leftovers(tmp_path)
    assert store.problem(folder) is None
    assert store.load_progress(folder).get("metrics") == (None if ending == ".old" else {"loss": 1.0})


def test_checkpoint_that_has_been_removed_is_not_made_again(folder):
    shutil.rmtree(folder)
    replace_progress(folder, {"step": 6})
    assert not folder.exists()


def test_run_directory_that_has_been_renamed_is_not_made_again(tmp_path):
    gone = RunDirectory(tmp_path / "run").checkpoint(3)
    with pytest.raises(FileNotFoundError):
        save(gone, Snapshot({"model.a": torch.ones(1)}, {"step": 3}, checkpoints.NO_CONFIG), checkpoints.ALONE)
    assert not (tmp_path / "run").exists()


SECONDS = 20


class Disk:
    """Holds every file back until it is told to go on, and then fails with `error`, if any."""

    def __init__(self, monkeypatch):
        self.goes_on = threading.Event()
        self.error = None
        self.write = tensor_file.write
        monkeypatch.setattr(tensor_file, "write", self.late)

    def late(self, path, tensors):
        assert self.goes_on.wait(SECONDS)
        if self.error is not None:
            raise self.error
        self.write(path, tensors)


@pytest.fixture
def disk(monkeypatch):
    return Disk(monkeypatch)


class Noted:
    """What the main thread is told, in order."""

    def __init__(self, exchange=lambda value: [value]):
        self.told = []
        hooks = RunHooks(on_progress=self.told.append, waiting=self.waiting)
        self.writer = BackgroundWriter(Writer(0, exchange, coordinates=True), hooks, self.published)

    def published(self):
        self.told.append("published")

    @contextlib.contextmanager
    def waiting(self, what):
        self.told.append(f"waits for {what}")
        yield


def save_in_background(writer, run, step, tensor, **progress):
    snapshot = Snapshot({"model.a": tensor}, {"step": step, **NAMES, **progress}, NO_CONFIG)
    writer.save(RunDirectory(run).checkpoint(step), snapshot)


def test_what_changes_while_a_checkpoint_is_written_is_not_in_it(tmp_path, disk):
    noted, weight, drains = Noted(), torch.ones(3), [1]
    save_in_background(noted.writer, tmp_path, 4, weight, drains=drains)
    weight.zero_()
    drains.append(2)
    assert store.checkpoints(tmp_path) == []
    disk.goes_on.set()
    noted.writer.finish()
    folder = store.newest_undamaged(str(tmp_path))
    assert contents.model_state(folder)["a"].tolist() == [1.0, 1.0, 1.0]
    assert store.load_progress(folder) == {"step": 4, **NAMES, "drains": [1]}
    assert "published" in noted.told


def test_next_checkpoint_waits_for_the_one_before(tmp_path, disk):
    writer = Noted().writer
    save_in_background(writer, tmp_path, 4, torch.ones(1))
    threading.Timer(0.1, disk.goes_on.set).start()
    save_in_background(writer, tmp_path, 8, torch.ones(1))
    assert RunDirectory(tmp_path).checkpoint(4) in store.checkpoints(tmp_path)
    writer.finish()
    assert [store.step_of(each) for each in store.checkpoints(tmp_path)] == [4, 8]


def test_full_disk_is_reported_once_and_keeps_last_checkpoint(tmp_path, disk):
    writer = Noted().writer
    disk.goes_on.set()
    save_in_background(writer, tmp_path, 4, torch.ones(1))
    writer.finish()
    disk.error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "part")
    disk.goes_on.clear()
    save_in_background(writer, tmp_path, 8, torch.ones(1))
    writer.check()  # still being written
    disk.goes_on.set()
    writer.settle(SECONDS)
    with pytest.raises(OSError, match="No space left on device"):
        writer.check()
    writer.finish()
    assert [store.step_of(each) for each in store.checkpoints(tmp_path)] == [4]
    assert [path.name for path in RunDirectory(tmp_path).checkpoints.iterdir()] == ["step-00000004"]


def test_main_thread_names_its_own_wait_or_that_for_others(tmp_path, disk):
    goes_on = threading.Event()

    def exchange(value):
        if disk.goes_on.is_set():
            assert goes_on.wait(SECONDS)
        return [value]

    noted = Noted(exchange)
    save_in_background(noted.writer, tmp_path, 4, torch.ones(1))
    ended = threading.Thread(target=noted.writer.finish)
    ended.start()
    until_told(noted, "writing the checkpoint of step 4")
    disk.goes_on.set()
    until_told(noted, "waits for the other stages' parts of the checkpoint of step 4")
    goes_on.set()
    ended.join(SECONDS)
    assert not ended.is_alive()


def until_told(noted, words):
    """Waits, as the main thread may be late on a busy machine."""
    deadline = time.monotonic() + SECONDS
    while words not in noted.told:
        assert time.monotonic() < deadline, f"never told: {words}"
        time.sleep(0.01)


def test_copies_of_a_checkpoint_are_freed_once_it_is_written(tmp_path, disk, monkeypatch):
    writer, copies, write = Noted().writer, [], disk.write
    monkeypatch.setattr(
        disk, "write", lambda path, tensors: copies.append(weakref.ref(tensors["model.a"])) or write(path, tensors)
    )
    disk.goes_on.set()
    save_in_background(writer, tmp_path, 4, torch.ones(3))
    writer.finish()
    gc.collect()
    assert [copy() for copy in copies] == [None]
