"""Checkpoints are written while the pipeline goes on, as it was when they were due."""

import contextlib
import errno
import os
import threading
import time

import pytest
import torch
from support.checkpoints import NAMES, NO_CONFIG

from pipetrain.executors.hooks import RunHooks
from pipetrain.run.checkpoint import contents, store, tensor_file
from pipetrain.run.checkpoint.writer import BackgroundWriter, Snapshot, Writer
from pipetrain.tracking.run_directory import RunDirectory

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


def save(writer, run, step, tensor, **progress):
    snapshot = Snapshot({"model.a": tensor}, {"step": step, **NAMES, **progress}, NO_CONFIG)
    writer.save(RunDirectory(run).checkpoint(step), snapshot)


def test_what_changes_while_a_checkpoint_is_written_is_not_in_it(tmp_path, disk):
    noted, weight, drains = Noted(), torch.ones(3), [1]
    save(noted.writer, tmp_path, 4, weight, drains=drains)
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
    save(writer, tmp_path, 4, torch.ones(1))
    threading.Timer(0.1, disk.goes_on.set).start()
    save(writer, tmp_path, 8, torch.ones(1))
    assert RunDirectory(tmp_path).checkpoint(4) in store.checkpoints(tmp_path)
    writer.finish()
    assert [store.step_of(each) for each in store.checkpoints(tmp_path)] == [4, 8]


def test_full_disk_is_reported_once_and_keeps_last_checkpoint(tmp_path, disk):
    writer = Noted().writer
    disk.goes_on.set()
    save(writer, tmp_path, 4, torch.ones(1))
    writer.finish()
    disk.error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "part")
    disk.goes_on.clear()
    save(writer, tmp_path, 8, torch.ones(1))
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
    save(noted.writer, tmp_path, 4, torch.ones(1))
    ended = threading.Thread(target=noted.writer.finish)
    ended.start()
    until_told(noted, "writing the checkpoint of step 4")
    disk.goes_on.set()
    until_told(noted, "waits for the others' parts of the checkpoint of step 4")
    goes_on.set()
    ended.join(SECONDS)
    assert not ended.is_alive()


def until_told(noted, words):
    """Waits, as the main thread may be late on a busy machine."""
    deadline = time.monotonic() + SECONDS
    while words not in noted.told:
        assert time.monotonic() < deadline, f"never told: {words}"
        time.sleep(0.01)


def test_device_checkpoint_memory_is_reused(tmp_path, disk, monkeypatch):
    writer, weight, written, write = Noted().writer, torch.ones(3), [], disk.write
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda _: True)
    monkeypatch.setattr(disk, "write", lambda path, tensors: written.append(tensors["model.a"]) or write(path, tensors))
    disk.goes_on.set()
    for step in (4, 8):
        save(writer, tmp_path, step, weight)
        writer.finish()
        weight.add_(1)
    assert written[0].data_ptr() == written[1].data_ptr()
    states = [contents.model_state(RunDirectory(tmp_path).checkpoint(step)) for step in (4, 8)]
    assert [state["a"].tolist() for state in states] == [[1.0] * 3, [2.0] * 3]
