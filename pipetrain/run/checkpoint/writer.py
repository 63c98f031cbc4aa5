"""Writes checkpoints: all processes together, complete or absent, and clears up what a killed run left of one."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from pipetrain.run.checkpoint import manifest, store, tensor_file
from pipetrain.run.checkpoint.manifest import FileEntry
from pipetrain.run.checkpoint.store import StoredConfig
from pipetrain.tracking import strict_json
from pipetrain.tracking.files import sync
from pipetrain.tracking.run_directory import RunDirectory

_PARTIAL, OLD = ".partial", ".old"
"""Suffixes of a checkpoint that is being written, and of one that is being removed."""


@dataclass(frozen=True)
class Writer:
    """A process among those that write a checkpoint together.

    Attributes:
        rank: its number.
        exchange: the value of each process, by rank, given its own; called in all processes together. They are JSON's.
        coordinates: True if it writes the files that all processes share.
    """

    rank: int
    exchange: Callable[[Any], list[Any]]
    coordinates: bool

    def together(self, work: Callable[[], Any]) -> list[Any]:
        """Results of `work` in each process, values of JSON. An OSError of one is raised in all: none waits for it.

        Raises:
            OSError: that of the first process with one.
        """
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
    """One process's part of a checkpoint.

    Attributes:
        tensors: its part, by name.
        progress: where the run stands; the coordinating process's is written.
        config: what the run was configured as; likewise.
    """

    tensors: Mapping[str, Tensor]
    progress: Mapping[str, Any]
    config: StoredConfig


def save(folder: Path, snapshot: Snapshot, writer: Writer) -> None:
    """Writes one checkpoint under a temporary name and then renames it, so that no partial one ever appears.

    Args:
        folder: `checkpoints/step-XXXXXXXX`.
        snapshot: this process's part.
        writer: this process.

    Raises:
        OSError: one process could not write its part; raised in all of them.
    """
    partial = folder.with_name(folder.name + _PARTIAL)
    part = partial / f"process-{writer.rank}{tensor_file.SUFFIX}"

    def begin() -> None:
        if writer.coordinates:
            shutil.rmtree(partial, ignore_errors=True)
            folder.parent.mkdir(exist_ok=True)  # but not the run directory, if that has been removed or renamed
            partial.mkdir()

    def write() -> dict[str, Any]:
        tensor_file.write(part, snapshot.tensors)
        return asdict(FileEntry.of(part))

    def publish() -> None:
        if writer.coordinates:
            texts = {store.PROGRESS: snapshot.progress, store.CONFIG: asdict(snapshot.config)}
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
    """Rewrites the progress of a checkpoint, in a folder that replaces it; does nothing if it has been removed.

    Raises:
        OSError: it cannot be written; the checkpoint is as before.
    """
    if not folder.is_dir():
        return
    partial = folder.with_name(folder.name + _PARTIAL)
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir()
        others = [entry for entry in manifest.entries(folder) if entry.name != store.PROGRESS]
        for entry in others:
            _linked(folder / entry.name, partial / entry.name)
        manifest.write(partial, [*others, _written(partial / store.PROGRESS, progress)])
        _put_in_place(partial, folder)
    except OSError:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _linked(path: Path, link: Path) -> None:
    """Gives a file a second name; a copy where the file system has no such links."""
    try:
        link.hardlink_to(path)
    except OSError:
        shutil.copy2(path, link)
        sync(link)


def _written(path: Path, content: Mapping[str, Any]) -> FileEntry:
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
    for partial in RunDirectory(run).checkpoints.glob(f"step-*{_PARTIAL}"):
        folder = partial.with_suffix("")
        if not folder.exists() and store.problem(partial) is None:
            partial.rename(folder)
    for left in (_PARTIAL, OLD):
        for path in RunDirectory(run).checkpoints.glob(f"step-*{left}"):
            shutil.rmtree(path, ignore_errors=True)
