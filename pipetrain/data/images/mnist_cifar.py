"""MNIST, Fashion-MNIST, CIFAR-10 and CIFAR-100 as published, and the bundled subset of Fashion-MNIST."""

import pickle
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipetrain.data.cache import download_lock
from pipetrain.data.images.common import CropFlip, ImageDataset, InMemory, Normalize
from pipetrain.errors import ConfigError, one_line

FASHION_MEAN, FASHION_STD = (0.2860,), (0.3530,)
"""Mean and deviation of the 60,000 training images, scaled to [0, 1]."""


def fashion_mnist_mini(*, augment: bool = False) -> ImageDataset:
    """The first 600 training and 200 test images of each class of Fashion-MNIST, held in memory.

    Images are float32 (1, 28, 28), normalized with the whole data set's mean and deviation. `augment` crops from an
    image padded by 4 and mirrors half of them, in training alone. Source: Xiao, Rasul, Vollgraf 2017, MIT license.
    """
    normalize = Normalize(FASHION_MEAN, FASHION_STD)
    arrays = _arrays()
    return ImageDataset(
        train=InMemory(arrays["train_images"], arrays["train_labels"], normalize, CropFlip() if augment else None),
        eval=InMemory(arrays["test_images"], arrays["test_labels"], normalize),
        channels=1,
        classes=10,
        size=(28, 28),
    )


def _arrays() -> dict[str, Tensor]:
    file = resources.files("pipetrain.data.images") / "fashion_mnist_mini.npz"
    with file.open("rb") as stream, np.load(stream) as archive:
        arrays = {name: torch.from_numpy(archive[name]) for name in archive.files}
    return {name: array[:, None] if name.endswith("images") else array for name, array in arrays.items()}


@dataclass(frozen=True)
class Source:
    """torchvision's name and files of a data set, and the constants of its images.

    Attributes:
        name: torchvision's class.
        folder: where the files are, below `root`.
        files: their names.
        archive: archive to unpack there.
        classes: how many.
        mean, std: per channel, over the training images scaled to [0, 1].
        flip: True if augmentation may mirror an image: a mirrored digit is another thing.
    """

    name: str
    folder: str
    files: tuple[str, ...]
    archive: str
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    flip: bool = True


_IDX = tuple(f"{split}-{kind}-ubyte" for split in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))

# Mean and deviation over all training pixels. MNIST: PyTorch's own example. CIFAR-10: the pixels' own; the often copied
# deviation 0.2023, 0.1994, 0.2010 is the mean of each image's. CIFAR-100: weiaicunzai/pytorch-cifar100.
_MNIST = Source("MNIST", "MNIST/raw", _IDX, "the four idx files, unpacked", 10, (0.1307,), (0.3081,), flip=False)
_FASHION = Source(
    "FashionMNIST", "FashionMNIST/raw", _IDX, "the four idx files, unpacked", 10, FASHION_MEAN, FASHION_STD
)
_CIFAR10 = Source(
    "CIFAR10",
    "cifar-10-batches-py",
    (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta"),
    "the files of cifar-10-python.tar.gz",
    10,
    (0.4914, 0.4822, 0.4465),
    (0.2470, 0.2435, 0.2616),
)
_CIFAR100 = Source(
    "CIFAR100",
    "cifar-100-python",
    ("train", "test", "meta"),
    "the files of cifar-100-python.tar.gz",
    100,
    (0.5071, 0.4865, 0.4409),
    (0.2673, 0.2564, 0.2762),
)


def mnist(root: str = "data", *, download: bool = False, augment: bool = False) -> ImageDataset:
    """Handwritten digits, float32 (1, 28, 28); `augment` crops from an image padded by 4 and mirrors nothing.

    Source: LeCun, Cortes, Burges 1998.

    Raises:
        ConfigError: the files are missing below `root`, or damaged.
    """
    return _image_dataset(_MNIST, root, download=download, augment=augment)


def fashion_mnist(root: str = "data", *, download: bool = False, augment: bool = False) -> ImageDataset:
    """Images of clothes, float32 (1, 28, 28); `augment` crops from an image padded by 4 and mirrors half of them.

    Source: Xiao, Rasul, Vollgraf 2017.

    Raises:
        ConfigError: the files are missing below `root`, or damaged.
    """
    return _image_dataset(_FASHION, root, download=download, augment=augment)


def cifar10(root: str = "data", *, download: bool = False, augment: bool = False) -> ImageDataset:
    """Small photographs, float32 (3, 32, 32); `augment` crops from an image padded by 4 and mirrors half of them.

    Source: Krizhevsky 2009.

    Raises:
        ConfigError: the files are missing below `root`, or damaged.
    """
    return _image_dataset(_CIFAR10, root, download=download, augment=augment)


def cifar100(root: str = "data", *, download: bool = False, augment: bool = False) -> ImageDataset:
    """As `cifar10`, with 100 classes: the fine labels.

    Raises:
        ConfigError: the files are missing below `root`, or damaged.
    """
    return _image_dataset(_CIFAR100, root, download=download, augment=augment)


def _image_dataset(source: Source, root: str, *, download: bool, augment: bool) -> ImageDataset:
    normalize = Normalize(source.mean, source.std)
    train, evaluation = _read(source, root, download=download)
    return ImageDataset(
        train=InMemory(*train, normalize, CropFlip(flip=source.flip) if augment else None),
        eval=InMemory(*evaluation, normalize),
        channels=train[0].shape[1],
        classes=source.classes,
        size=(train[0].shape[2], train[0].shape[3]),
    )


def _read(source: Source, root: str, *, download: bool) -> list[tuple[Tensor, Tensor]]:
    """Images (samples, C, H, W) and classes of the training and the test split."""
    from pipetrain.libraries.torchvision_shim import datasets

    build: Callable[..., Any] = getattr(datasets, source.name)
    base = Path(root).expanduser().absolute()
    folder = base / source.folder
    with download_lock(base, f"dataset.root={root}") if download else nullcontext():
        if download:
            _download(source, build, base)
        try:
            read = [_tensors(build(base, train=train)) for train in (True, False)]
        except (RuntimeError, ValueError, AssertionError, LookupError, OSError, EOFError, pickle.PickleError) as error:
            raise ConfigError(_missing(source, root, folder)) from error
    for images, labels in read:
        if len(images) != len(labels):
            raise ConfigError(f"dataset.root={root}: {folder} has {len(images)} images with {len(labels)} labels")
    return read


def _tensors(read: Any) -> tuple[Tensor, Tensor]:
    """MNIST's classes hold (samples, H, W) tensors, CIFAR's (samples, H, W, 3) arrays and a list."""
    images = torch.as_tensor(read.data)
    images = images[:, None] if images.dim() == 3 else images.permute(0, 3, 1, 2)
    return images.contiguous(), torch.as_tensor(np.asarray(read.targets))


def _missing(source: Source, root: str, folder: Path) -> str:
    absent = [name for name in source.files if not (folder / name).is_file()]
    fault = f"no {_listed(absent)} in {folder}" if absent else f"a file in {folder} is damaged"
    remedy = f"set dataset.download=true to fetch {source.name}, or put {source.archive} there"
    return f"dataset.root={root}: {fault}; {remedy}"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def _download(source: Source, build: Callable[..., Any], base: Path) -> None:
    try:
        build(base, download=True)
    except (RuntimeError, OSError) as error:
        problem = f"{source.name} could not be fetched into {base}: {one_line(error)}"
        raise ConfigError(f"dataset.download=true: {problem}") from error
