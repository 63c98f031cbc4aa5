"""The Microsoft Research video descriptions (MSVD, Chen and Dolan 2011), as features of frames and captions."""

import os
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from pipetrain.data.libraries.imports import require
from pipetrain.engine.errors import ConfigError, check_whole, one_line
from pipetrain.zoo.data.text.text_files import MOST_BYTES, read_text
from pipetrain.zoo.data.video.captions import CaptionDataset

CAPTIONS, NUMBERS = "AllVideoDescriptions.txt", "youtube_mapping.txt"
"""The published files: `VIDEO caption` a line; `VIDEO vidN` a line, the number by which papers split."""
_FEATURES = ("features.npz", "features.h5", "features.hdf5")
_OF_FEATURES, _OF_CAPTIONS = "features/", "captions/"
_SPLITS = ("validation", "test")
_DAMAGE = (
    OSError, ValueError, KeyError, EOFError, NotImplementedError, MemoryError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""Exceptions of damaged files; their headers may name arrays that no memory holds."""


class FeatureFile:
    """A file of arrays by name, NumPy's .npz or HDF5, where names are paths of data sets in groups.

    Each process that reads opens it for itself: what a library keeps of a file cannot be shared.

    Raises:
        ConfigError: it cannot be read.
    """

    def __init__(self, path: Path) -> None:
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
            if (size := _size_of(self._file, name)) > MOST_BYTES:  # a packed array of zeros takes little room
                raise ValueError(f"it unpacks to {size // 10**6:,} MB, and {MOST_BYTES // 10**6:,} are read at most")
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


def _size_of(file: Any, name: str) -> int:
    """Bytes of an array in memory."""
    if isinstance(file, np.lib.npyio.NpzFile):
        assert file.zip is not None, "it is open"
        return next(each.file_size for each in file.zip.infolist() if each.filename in (name, f"{name}.npy"))
    return int(file[name].nbytes)


@contextmanager
def _naming(what: str) -> Iterator[None]:
    try:
        yield
    except _DAMAGE as error:
        raise ConfigError(f"{what}: {one_line(error)}") from error


class FeatureVideos:
    """Videos of these names, whose features are in a file; all have the number of features of the first captioned one.

    Longer videos are read at even steps, shorter ones end in zeros, so that each has `frames` frames.
    """

    reads_files: ClassVar[bool] = True

    def __init__(
        self, file: FeatureFile, captions: Mapping[str, Sequence[str]], names: Sequence[str], frames: int
    ) -> None:
        self._file = file
        self._captions = [list(captions[name]) for name in names]
        prefix = _OF_FEATURES if any(name.startswith(_OF_FEATURES) for name in file.names) else ""
        self._names = [prefix + name for name in names]
        self._first = prefix + next(iter(captions))
        self._frames = frames

    def __len__(self) -> int:
        return len(self._names)

    def captions(self, index: int) -> Sequence[str]:
        """The captions of a video."""
        return self._captions[index]

    def frames(self, index: int) -> Tensor:
        """The features of a video's frames (frames, features), float32.

        Raises:
            ConfigError: they are of another form.
        """
        found = self._read(self._names[index])
        if found.shape[1] != self._features:
            raise ConfigError(
                f"{self._file.path}: {self._names[index]} has {found.shape[1]} features of a frame, and {self._first} "
                f"has {self._features}; all videos must have the same number"
            )
        steps = np.arange(self._frames) * len(found) // self._frames if len(found) > self._frames else slice(None)
        features = torch.zeros(self._frames, found.shape[1])
        kept = torch.from_numpy(np.ascontiguousarray(found[steps], dtype=np.float32))
        features[: len(kept)] = kept
        return features

    @cached_property
    def _features(self) -> int:
        """Number of features of a frame of the first video."""
        return int(self._read(self._first).shape[1])

    def _read(self, name: str) -> Any:
        found = self._file.read(name)
        if found.ndim != 2 or not len(found) or not np.issubdtype(found.dtype, np.number):
            raise ConfigError(
                f"{self._file.path}: {name} is {found.dtype} {found.shape}; the features of a video are numbers "
                "(frames, features)"
            )
        return found


def msvd(  # noqa: PLR0913  (one for each setting of the choice)
    root: str = "data/msvd",
    split: str = "test",
    frames: int = 40,
    longest: int = 20,
    least: int = 1,
    train_videos: int = 1200,
    validation_videos: int = 100,
) -> CaptionDataset:
    """Videos as features of their frames, each with many captions; or other videos in the same form.

    The features are in `features.npz`, `features.h5` or `features.hdf5`, an array (frames, features) for each video by
    its name. The captions are in the published text file, or in the file of the features: arrays of strings called
    `captions/VIDEO` next to `features/VIDEO`.

    Videos are split by their number: the first are for training, the next for validation, the rest for the test;
    `split` is the part to evaluate on.

    Raises:
        ConfigError: a file is missing or damaged, or a number does not fit.
    """
    counts = {"frames": frames, "longest": longest, "least": least, "train_videos": train_videos}
    for name, count in counts.items():
        check_whole(f"dataset.{name}", count, least=1)
    check_whole("dataset.validation_videos", validation_videos, least=0)
    if split not in _SPLITS:
        raise ConfigError(f"dataset.split={split}: must be one of {', '.join(_SPLITS)}")
    folder = Path(root).expanduser()
    file = FeatureFile(_features_in(folder))
    published = _published_names(folder)
    captions = _captions(folder, file, published)
    captions = dict(sorted(captions.items(), key=lambda each: _number(published.get(each[0], each[0]))))
    names = list(captions)
    first = train_videos + (0 if split == "validation" else validation_videos)
    last = train_videos + validation_videos if split == "validation" else len(names)
    if not names[first:last]:
        raise ConfigError(
            f"dataset.train_videos={train_videos}: {file.path} has {len(names)} videos with captions, which leaves "
            f"none to evaluate on (dataset.split={split}, dataset.validation_videos={validation_videos})"
        )
    parts = (names[:train_videos], names[first:last])
    train, evaluation = (FeatureVideos(file, captions, part, frames) for part in parts)
    return CaptionDataset(train, evaluation, longest=longest, least=least)


def _features_in(folder: Path) -> Path:
    for name in _FEATURES:
        if (folder / name).is_file():
            return folder / name
    raise ConfigError(
        f"dataset.root={folder}: no {', '.join(_FEATURES[:-1])} or {_FEATURES[-1]} here, a float array (frames, "
        f"features) for each video by its name; extract them with any network, and put {CAPTIONS} "
        "of MSVD next to them (docs/language-models.md)"
    )


def _published_names(folder: Path) -> dict[str, str]:
    """The original name of a video -> its name with a number, such as vid1; empty without the published list."""
    path = folder / NUMBERS
    return dict(_lines(path)) if path.is_file() else {}


def _captions(folder: Path, file: FeatureFile, published: Mapping[str, str]) -> dict[str, list[str]]:
    """Name of a video in the file of features -> its captions; videos without any are left out."""
    names = {name.removeprefix(_OF_FEATURES) for name in file.names if not name.startswith(_OF_CAPTIONS)}
    within = {name: f"{_OF_CAPTIONS}{name}" for name in names if f"{_OF_CAPTIONS}{name}" in file.names}
    if within:
        return {
            name: [text.decode() if isinstance(text, bytes) else str(text) for text in file.read(entry).ravel()]
            for name, entry in within.items()
        }
    path = folder / CAPTIONS
    if not path.is_file():
        raise ConfigError(f"dataset.root={folder}: no captions: neither {path} nor captions/VIDEO in {file.path}")
    return _listed_captions(path, file, names, published)


def _listed_captions(
    path: Path, file: FeatureFile, names: Set[str], published: Mapping[str, str]
) -> dict[str, list[str]]:
    """The captions in a list, of the videos with these names in the file of features."""
    found: dict[str, list[str]] = {}
    for name, caption in _lines(path):
        name = name if name in names else published.get(name, name)
        if name in names:
            found.setdefault(name, []).append(caption)
    if not found:
        raise ConfigError(f"{path}: names no video of {file.path}, which has {', '.join(sorted(names)[:3])}, ...")
    return found


def _lines(path: Path) -> list[tuple[str, str]]:
    """The name and the rest of each line that is no comment and not empty."""
    pairs = []
    text = read_text(path, f"dataset.root={path.parent}", "put it there")
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, rest = line.strip().partition(" ")
        if not rest.strip():
            raise ConfigError(f"{path}, line {number}: {name} stands alone; a line is `VIDEO caption`")
        pairs.append((name, rest.strip()))
    return pairs


def _number(name: str) -> tuple[int, str]:
    """Sort key by which videos are split: 12 for vid12; names without a number come last, alphabetically."""
    found = re.fullmatch(r"\D*(\d+)", name)
    return (int(found[1]) if found else 2**62, name)
