"""Files that are there as a whole or not at all, whatever ends the process that writes them."""

import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Writes a file beside its place, and renames it once it is on the disk."""
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Puts the names in a folder on the disk: a rename that is not there may be undone by a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
