"""Arrays by name in one file, NumPy's .npz or HDF5, each read when it is asked for."""

import os
import zipfile
import zlib
from abc import ABC, abstractmethod
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


class FeatureFile(ABC):
    """A file of arrays. Each process that reads opens it for itself: what a library keeps of a file cannot be shared.

    Args:
        path: of the file.

    Raises:
        ConfigError: it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._opened: tuple[int, Any] | None = None
        with _naming(f"{path}: damaged"):
            self.names = sorted(self._names(self._file))

    @property
    def _file(self) -> Any:
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = os.getpid(), self._open()
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

    @abstractmethod
    def _open(self) -> Any: ...

    @abstractmethod
    def _names(self, file: Any) -> list[str]: ...


class NumpyFile(FeatureFile):
    """An .npz file."""

    @override
    def _open(self) -> Any:
        file = np.load(self.path, allow_pickle=False)
        if not isinstance(file, Mapping):
            raise ValueError("it holds a single array, without a name")
        return file

    @override
    def _names(self, file: Any) -> list[str]:
        return list(file)


class HdfFile(FeatureFile):
    """An HDF5 file; a name is the path of a data set in its groups."""

    @override
    def _open(self) -> Any:
        require(f"{self.path}: HDF5", ("h5py",), "video", "; or write the arrays to an .npz file")
        import h5py

        return h5py.File(self.path, "r")

    @override
    def _names(self, file: Any) -> list[str]:
        names: list[str] = []
        file.visititems(lambda name, entry: names.append(name) if hasattr(entry, "shape") else None)
        return names


@contextmanager
def _naming(what: str) -> Iterator[None]:
    """Names what is damaged."""
    try:
        yield
    except _DAMAGE as error:
        raise ConfigError(f"{what}: {one_line(error)}") from error


_KINDS: Mapping[str, type[FeatureFile]] = {".npz": NumpyFile, ".h5": HdfFile, ".hdf5": HdfFile}


def feature_file(path: Path) -> FeatureFile:
    """The file of arrays at `path`.

    Raises:
        ConfigError: it is of another kind, or cannot be read.
    """
    kind = _KINDS.get(path.suffix)
    if kind is None:
        raise ConfigError(f"{path}: a file of features ends in {', '.join(_KINDS)}")
    return kind(path)
