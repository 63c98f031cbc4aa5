"""manifest.json of a checkpoint: size, sha256 and tensors of each of its files, written last and checked before use."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipetrain.data.files import strict_json
from pipetrain.engine.processes import usable_cores
from pipetrain.runner.tracking.files import naming, sync

NAME = "manifest.json"
_FORMAT = 3
"""The number of the format; 1 had no config.json, 2 no names of tensors."""


@dataclass(frozen=True)
class FileEntry:
    """Entry of one file in a manifest: its name in the folder, its size in bytes, and the sha256 of its content.

    It also has the names of the tensors in the file, so that a process opens only the files that it needs.
    """

    name: str
    size: int
    sha256: str
    tensors: Sequence[str] = ()

    @classmethod
    def of(cls, path: Path, tensors: Sequence[str] = ()) -> "FileEntry":
        """The entry of a file, which is synced to the disk."""
        sync(path)
        return cls(path.name, path.stat().st_size, sha256_of(path), tensors)

    def fault(self, folder: Path) -> str | None:
        """Difference between the file and this entry; None if it matches."""
        path = folder / self.name
        if not path.is_file():
            return "it is missing"
        if (size := path.stat().st_size) != self.size:
            return f"it has {size:,} bytes instead of {self.size:,}"
        return None if sha256_of(path) == self.sha256 else f"its sha256 is not that of {NAME}"


def write(folder: Path, listed: Iterable[FileEntry]) -> None:
    """Writes the manifest; it and the folder are on the disk when this returns."""
    path = folder / NAME
    with naming(path):
        path.write_text(_text(sorted(listed, key=lambda entry: entry.name)), encoding="utf-8")
    sync(path)
    sync(folder)


def entries(folder: Path) -> list[FileEntry]:
    """The files of a checkpoint without a problem, its manifest aside."""
    files = _read(folder)["files"].items()
    listed = [FileEntry(name, of["size"], of["sha256"], of.get("tensors", ())) for name, of in files]
    if not listed or any(Path(entry.name).name != entry.name for entry in listed):
        raise ValueError("no files of this folder")
    if not all(isinstance(name, str) for entry in listed for name in entry.tensors):
        raise ValueError("no names of tensors")
    return listed


def problem(folder: Path) -> str | None:
    """Why a checkpoint cannot be used, in one line that names the file; None if all files are as written."""
    path = folder / NAME
    if not path.is_file():
        return f"{path}: damaged: it is missing"
    try:
        if (number := _read(folder)["format"]) != _FORMAT:
            return f"{folder}: in format {number} of checkpoints; this version reads format {_FORMAT}"
        listed = entries(folder)
        if path.read_text(encoding="utf-8") != _text(listed):
            return f"{path}: damaged: it is not as it was written"
        with ThreadPoolExecutor(usable_cores()) as pool:
            faults = list(pool.map(lambda entry: entry.fault(folder), listed))
        for entry, fault in zip(listed, faults, strict=True):
            if fault:
                return f"{folder / entry.name}: damaged: {fault}"
        foreign = {each.name for each in folder.iterdir()} - {NAME, *(entry.name for entry in listed)}
        return f"{folder / min(foreign)}: foreign: it is not in {NAME}" if foreign else None
    except OSError as error:
        return f"{error.filename or path}: cannot be read: {error.strerror}"
    except (ValueError, TypeError, KeyError, AttributeError):
        return f"{path}: damaged: it lists no files"


def _text(listed: Iterable[FileEntry]) -> str:
    files: dict[str, dict[str, Any]] = {}
    for entry in listed:
        files[entry.name] = {"size": entry.size, "sha256": entry.sha256}
        if entry.tensors:
            files[entry.name]["tensors"] = entry.tensors
    return json.dumps({"format": _FORMAT, "files": files}, indent=2) + "\n"


def _read(folder: Path) -> Any:
    return strict_json.read(folder / NAME)


def sha256_of(path: Path) -> str:
    """The sha256 of a file's content, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
