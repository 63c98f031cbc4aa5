"""Arrays by name in one file, NumPy's .npz or HDF5, each read when it is asked for."""

import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import override

from pipetrain.errors import ConfigError, one_line
from pipetrain.libraries.imports import require

_DAMAGE = (
    OSError, ValueError, KeyError, EOFError, NotImplementedError, MemoryError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""Exceptions of damaged files; their headers may name arrays that no memory holds."""


_SUFFIXES = (".npz", ".h5", ".hdf5")


class FeatureFile:
    """A file of arrays. Each process that reads opens it for itself: what a library keeps of a file cannot be shared.

    In HDF5, names of arrays are paths of data sets in its groups.

    Raises:
        ConfigError: it is of another kind, or cannot be read.
    """

    def __init__(self, path: Path) -> None:
        if path.suffix not in _SUFFIXES:
            raise ConfigError(f"{path}: a file of features ends in {', '.join(_SUFFIXES)}")
        self.path = path
        self._opened: tuple[int, Any] | None = None
        with _naming(f"{path}: damaged"):
            self.names = sorted(_names(self._file))

    @property
    def _file(self) -> Any:
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = os.getpid(), _open(self.path)
        return self._opened[1]

    @override
    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def read(self, name: str) -> Any:
        """The array of a name.

        Raises:
            ConfigError: the file is damaged there.
        """
        with _naming(f"{self.path}: {name} is damaged"):
            return np.asarray(self._file[name])


def _open(path: Path) -> Any:
    if path.suffix == ".npz":
        file = np.load(path, allow_pickle=False)
        if not isinstance(file, Mapping):
            raise ValueError("it holds a single array, without a name")
        return file
    require(f"{path}: HDF5", ("h5py",), "video", "; or write the arrays to an .npz file")
    import h5py

    return h5py.File(path, "r")


def _names(file: Any) -> list[str]:
    if isinstance(file, np.lib.npyio.NpzFile):
        return list(file)
    names: list[str] = []
    file.visititems(lambda name, entry: names.append(name) if hasattr(entry, "shape") else None)
    return names


@contextmanager
def _naming(what: str) -> Iterator[None]:
    try:
        yield
    except _DAMAGE as error:
        raise ConfigError(f"{what}: {one_line(error)}") from error
