"""Files that exist whole or not at all, new folders, and archives of an earlier run's files."""

import contextlib
import itertools
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from pipetrain.engine.errors import ConfigError


def write_whole(path: Path, content: str | bytes) -> None:
    """Writes a temporary file next to `path`, and renames it once it is on the disk; never through a link."""
    partial = path.with_name(path.name + ".partial")
    try:
        partial.unlink(missing_ok=True)
        with naming(path), partial.open("xb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
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
        with naming(path):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Names the file in an error of the system that names none, as of a write."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


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


_PREFIX = "earlier-"


def is_archive(folder: Path) -> bool:
    """True if a folder has the name of an archive of an earlier run."""
    return re.fullmatch(rf"{_PREFIX}\d+", folder.name) is not None


def archive_files(folder: Path, names: Iterable[str]) -> Path | None:
    """Moves the named files that exist into a new folder `earlier-N`; None if none exists.

    Raises:
        ConfigError: one of them is where a disk is mounted.
    """
    present = [name for name in names if (folder / name).exists()]
    if not present:
        return None
    if mounted := next((folder / name for name in present if os.path.ismount(folder / name)), None):
        raise ConfigError(
            f"{mounted}: is a mount that holds an earlier run's files; empty it, or choose another directory"
        )
    numbered = (folder / f"{_PREFIX}{number}" for number in itertools.count(1))
    aside = next(path for path in numbered if not os.path.lexists(path))
    for name in present:
        (aside / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).rename(aside / name)
    sync(folder)
    return aside
