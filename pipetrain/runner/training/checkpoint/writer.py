"""Writes checkpoints in all processes together: in a separate thread of each, and complete or not at all."""

import shutil
import threading
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from pipetrain.data.files import strict_json
from pipetrain.engine.executors.hooks import RunHooks
from pipetrain.runner.tracking.files import naming, sync
from pipetrain.runner.tracking.host_copies import host_copies
from pipetrain.runner.tracking.run_directory import RunDirectory
from pipetrain.runner.training.checkpoint import manifest, store, tensor_file
from pipetrain.runner.training.checkpoint.manifest import FileEntry
from pipetrain.runner.training.checkpoint.store import OLD, PARTIAL


@dataclass(frozen=True)
class Writer:
    """A process among those that write a checkpoint together.

    Attributes:
        exchange: the values of all processes by rank, given that of this one; values of JSON.
        coordinates: True if it writes the files that all processes share.
    """

    rank: int
    exchange: Callable[[Any], list[Any]]
    coordinates: bool

    def together(self, work: Callable[[], Any]) -> list[Any]:
        """Results of `work` in each process, values of JSON; the first process's OSError is raised in all."""
        returned, failure = None, None
        try:
            returned = work()
        except OSError as error:
            failure = [error.errno, error.strerror or str(error), error.filename and str(error.filename)]
        results = self.exchange([returned, failure])
        for _, failure in results:
            if failure is not None:
                raise OSError(*failure)
        return [returned for returned, _ in results]


@dataclass(frozen=True)
class Snapshot:
    """One process's part of a checkpoint; `progress` and `config` are written by the coordinating one alone."""

    tensors: Mapping[str, Tensor]
    progress: Mapping[str, Any]
    config: Mapping[str, Any]


def save(folder: Path, snapshot: Snapshot, writer: Writer) -> None:
    """Writes a checkpoint under another name and renames it, so that no partial one appears; raises as `together`."""
    partial = folder.with_name(folder.name + PARTIAL)
    part = partial / f"process-{writer.rank}{tensor_file.SUFFIX}"

    def begin() -> None:
        if writer.coordinates:
            shutil.rmtree(partial, ignore_errors=True)
            folder.parent.mkdir(exist_ok=True)  # but not the run directory, if that has been removed or renamed
            partial.mkdir()

    def write() -> dict[str, Any]:
        tensor_file.write(part, snapshot.tensors)
        return asdict(FileEntry.of(part, sorted(snapshot.tensors)))

    def publish() -> None:
        if writer.coordinates:
            texts = {store.PROGRESS: snapshot.progress, store.CONFIG: snapshot.config}
            manifest.write(partial, [*entries, *(_written(partial / name, text) for name, text in texts.items())])
            _put_in_place(partial, folder)

    try:
        writer.together(begin)
        entries = [FileEntry(**entry) for entry in writer.together(write)]
        writer.together(publish)
    except OSError:
        if writer.coordinates:  # a full disk needs the room
            shutil.rmtree(partial, ignore_errors=True)
        raise


def replace_progress(folder: Path, progress: Mapping[str, Any]) -> None:
    """Rewrites the progress of a checkpoint, if it is still there; an OSError leaves it as it was."""
    if not folder.is_dir():
        return
    partial = folder.with_name(folder.name + PARTIAL)
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir()
        others = [entry for entry in manifest.entries(folder) if entry.name != store.PROGRESS]
        for entry in others:
            path, link = folder / entry.name, partial / entry.name
            try:
                link.hardlink_to(path)
            except OSError:  # the file system has no such links
                shutil.copy2(path, link)
                sync(link)
        manifest.write(partial, [*others, _written(partial / store.PROGRESS, progress)])
        _put_in_place(partial, folder)
    except OSError:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _written(path: Path, content: Mapping[str, Any]) -> FileEntry:
    with naming(path):
        path.write_text(strict_json.dumps(content), encoding="utf-8")
    return FileEntry.of(path)


def _put_in_place(partial: Path, folder: Path) -> None:
    """Renames a complete checkpoint; an earlier one of the same step makes room at the last moment."""
    old = folder.with_name(folder.name + OLD)
    if folder.exists():
        folder.rename(old)
    try:
        partial.rename(folder)
    except OSError:
        if old.exists():
            old.rename(folder)
        raise
    sync(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def remove_leftovers(run: Path) -> None:
    """Cleans up after a run that was killed while writing a checkpoint; one that lacks only its name is renamed."""
    for partial in RunDirectory(run).checkpoints.glob(f"step-*{PARTIAL}"):
        folder = partial.with_suffix("")
        if not folder.exists() and store.problem(partial) is None:
            partial.rename(folder)
    for path in RunDirectory(run).checkpoints.glob(f"step-*{PARTIAL}"):
        shutil.rmtree(path, ignore_errors=True)
    for path in RunDirectory(run).checkpoints.glob(f"step-*{OLD}"):
        if path.with_suffix("").exists():  # else a user has renamed it
            shutil.rmtree(path, ignore_errors=True)


_IDLE, _WRITING, _EXCHANGING = range(3)
"""States of the writing thread."""


class BackgroundWriter:
    """Writes one checkpoint at a time; all processes of a run have one, and write the same checkpoints in one order.

    Args:
        writer: this process among those that write together; its exchange is called in the thread.
        hooks: receives what the main thread does and waits for.
        published: called in the thread once a checkpoint is complete.
    """

    def __init__(self, writer: Writer, hooks: RunHooks, published: Callable[[], None] | None = None) -> None:
        self._writer = replace(writer, exchange=self._exchange)
        self._others = writer.exchange
        self._hooks = hooks
        self._published = published
        self._changed = threading.Condition()
        self._state = _IDLE
        self._step = 0
        self._error: BaseException | None = None

    def save(self, folder: Path, snapshot: Snapshot) -> None:
        """Copies a snapshot, and writes it in the background; first waits for the checkpoint before.

        Call it when the pipeline has drained. Raises for the checkpoint before as `check`.
        """
        self.finish()
        copies = dict(zip(snapshot.tensors, host_copies([*snapshot.tensors.values()]), strict=True))
        copied = replace(snapshot, tensors=copies, progress=deepcopy(snapshot.progress))
        self._start(folder, lambda: save(folder, copied, self._writer))

    def save_progress(self, folder: Path, progress: Mapping[str, Any]) -> None:
        """Replaces the progress of a checkpoint that is complete, or being written; in one process alone.

        Raises for the checkpoint before as `check`.
        """
        self.finish()
        copied = deepcopy(progress)
        self._start(folder, lambda: replace_progress(folder, copied))

    def check(self) -> None:
        """Reports a checkpoint that failed, without waiting for one that is being written.

        Raises:
            OSError: one process could not write its part.
            LostStageError: another process is gone.
        """
        if self._error is not None and self._state is _IDLE:
            error, self._error = self._error, None
            raise error

    @property
    def succeeded(self) -> bool:
        """True if no checkpoint is being written, and none failed that `check` has yet to report."""
        return self._state is _IDLE and self._error is None

    def finish(self) -> None:
        """Waits until the checkpoint that is being written is complete; raises as `check`."""
        hooks = self._hooks
        with self._changed:
            while (state := self._state) is not _IDLE:
                if state is _EXCHANGING:
                    with hooks.waiting(f"the other stages' parts of the checkpoint of step {self._step}"):
                        self._changed.wait_for(lambda: self._state is not _EXCHANGING)
                else:
                    hooks.on_progress(f"writing the checkpoint of step {self._step}")
                    self._changed.wait_for(lambda: self._state is not _WRITING)
        self.check()

    def settle(self, seconds: float) -> None:
        """Gives the checkpoint that is being written some time to become complete, as the run is about to fail."""
        with self._changed:
            self._changed.wait_for(lambda: self._state is _IDLE, seconds)

    def _start(self, folder: Path, write: Callable[[], None]) -> None:
        self._step, self._state = store.step_of(folder), _WRITING
        threading.Thread(target=self._publish, args=(write,), name="checkpoint", daemon=True).start()

    def _publish(self, write: Callable[[], None]) -> None:
        try:
            write()
            if self._published is not None:
                self._published()
        except BaseException as error:  # which the main thread reports
            self._error = error
        finally:
            self._become(_IDLE)

    def _exchange(self, value: Any) -> list[Any]:
        self._become(_EXCHANGING)
        try:
            return self._others(value)
        finally:
            self._become(_WRITING)

    def _become(self, state: int) -> None:
        with self._changed:
            self._state = state
            self._changed.notify_all()
