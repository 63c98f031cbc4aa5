"""Folders that nobody else has."""

import contextlib
import itertools
from pathlib import Path


def new_folder(wanted: Path) -> Path:
    """Makes a folder of its own for whoever asks: `wanted`, or where that is taken `wanted-2`, `wanted-3`, ..."""
    names = itertools.chain([wanted.name], (f"{wanted.name}-{number}" for number in itertools.count(2)))
    for folder in map(wanted.with_name, names):
        folder.parent.mkdir(parents=True, exist_ok=True)
        # FileNotFoundError: a refused run has taken back its empty outputs/DATE/ at this very moment
        with contextlib.suppress(FileExistsError, FileNotFoundError):
            folder.mkdir()
            return folder
    raise AssertionError("names do not run out")
