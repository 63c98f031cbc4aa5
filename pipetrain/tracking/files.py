"""Files that exist whole or not at all, and folders that no other process has."""

import contextlib
import itertools
import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Writes a temporary file next to `path`, and renames it once it is on the disk; never through a link."""
    partial = path.with_name(path.name + ".partial")
    try:
        partial.unlink(missing_ok=True)
        with partial.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    sync(path.parent)


def sync(path: Path) -> None:
    """Waits until a file's content, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def new_folder(wanted: Path) -> Path:
    """Makes and returns a new folder: `wanted`, or if that exists `wanted-2`, `wanted-3`, ..."""
    names = itertools.chain([wanted.name], (f"{wanted.name}-{number}" for number in itertools.count(2)))
    for folder in map(wanted.with_name, names):
        folder.parent.mkdir(parents=True, exist_ok=True)
        # FileNotFoundError: a refused run has taken back its empty outputs/DATE/ at this very moment
        with contextlib.suppress(FileExistsError, FileNotFoundError):
            folder.mkdir()
            return folder
    raise AssertionError("names do not run out")
