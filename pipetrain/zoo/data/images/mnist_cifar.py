"""MNIST, Fashion-MNIST, CIFAR-10 and CIFAR-100 as published, and the bundled subset of Fashion-MNIST.

The published data sets raise a ConfigError if files are missing below `root`, or damaged.
"""

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from pipetrain.engine.errors import ConfigError
from pipetrain.zoo.data.images.common import CropFlip, ImageDataset, LabelledImages, Normalize, downloading

FASHION_MEAN, FASHION_STD = (0.2860,), (0.3530,)
"""Mean and deviation of the 60,000 training images, scaled to [0, 1]."""


def fashion_mnist_mini(*, augment: bool = False) -> ImageDataset:
    """The first 600 training and 200 test images of each class of Fashion-MNIST, held in memory.

    Images are float32 (1, 28, 28), normalized with the whole data set's mean and deviation. `augment` crops from an
    image padded by 4 and mirrors half of them, in training alone. Source: Xiao, Rasul, Vollgraf 2017, MIT license.
    """
    file = resources.files("pipetrain.zoo.data.images") / "fashion_mnist_mini.npz"
    with file.open("rb") as stream, np.load(stream) as archive:
        # a PNG of all images, one below the other, takes least
        images = torch.from_numpy(np.array(Image.open(BytesIO(archive["images"])))).view(-1, 1, 28, 28)
        labels = [torch.from_numpy(archive[f"{split}_labels"]) for split in ("train", "test")]
    splits = list(zip(images.split([len(each) for each in labels]), labels, strict=True))
    return _image_dataset(_FASHION, splits, augment=augment)


@dataclass(frozen=True)
class Source:
    """A class of torchvision's, and the constants of its images.

    Attributes:
        mean, std: per channel, over the training images scaled to [0, 1].
        flip: True if augmentation may mirror an image: a mirrored digit is another thing.
    """

    name: str
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    flip: bool = True


# Mean and deviation over all training pixels. MNIST: PyTorch's own example. CIFAR-10: the pixels' own; the often copied
# deviation 0.2023, 0.1994, 0.2010 is the mean of each image's. CIFAR-100: weiaicunzai/pytorch-cifar100.
_MNIST = Source("MNIST", 10, (0.1307,), (0.3081,), flip=False)
_FASHION = Source("FashionMNIST", 10, FASHION_MEAN, FASHION_STD)
_CIFAR10 = Source("CIFAR10", 10, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
_CIFAR100 = Source("CIFAR100", 100, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))


def mnist(root: str = "data", *, download: bool = False, augment: bool = False) -> ImageDataset:
    """Handwritten digits, float32 (1, 28, 28); `augment` crops from an image padded by 4 and mirrors nothing.

    Source: LeCun, Cortes, Burges 1998.
    """
    return _image_dataset(_MNIST, _read(_MNIST, root, download=download), augment=augment)


def fashion_mnist(root: str = "data", *, download: bool = False, augment: bool = False) -> ImageDataset:
    """Images of clothes, float32 (1, 28, 28); `augment` crops from an image padded by 4 and mirrors half of them.

    Source: Xiao, Rasul, Vollgraf 2017.
    """
    return _image_dataset(_FASHION, _read(_FASHION, root, download=download), augment=augment)


def cifar10(root: str = "data", *, download: bool = False, augment: bool = False) -> ImageDataset:
    """Small photographs, float32 (3, 32, 32); `augment` crops from an image padded by 4 and mirrors half of them.

    Source: Krizhevsky 2009.
    """
    return _image_dataset(_CIFAR10, _read(_CIFAR10, root, download=download), augment=augment)


def cifar100(root: str = "data", *, download: bool = False, augment: bool = False) -> ImageDataset:
    """As `cifar10`, with 100 classes: the fine labels."""
    return _image_dataset(_CIFAR100, _read(_CIFAR100, root, download=download), augment=augment)


def _image_dataset(source: Source, splits: Sequence[tuple[Tensor, Tensor]], *, augment: bool) -> ImageDataset:
    train, evaluation = splits
    normalize = Normalize(source.mean, source.std)
    return ImageDataset(
        train=LabelledImages(*train, normalize, CropFlip(flip=source.flip) if augment else None),
        eval=LabelledImages(*evaluation, normalize),
        channels=train[0].shape[1],
        classes=source.classes,
        size=(train[0].shape[2], train[0].shape[3]),
    )


def _read(source: Source, root: str, *, download: bool) -> list[tuple[Tensor, Tensor]]:
    """Images (samples, C, H, W) and classes of the training and the test split."""
    from pipetrain.zoo.torchvision_shim import datasets

    kind: Any = getattr(datasets, source.name)
    base = Path(root).expanduser().absolute()
    if download:
        with downloading(source.name, base, root):
            kind(base, download=True)
    folder, files, archive = _published(kind)
    for path in (base / folder / name for name in files):
        if path.exists() and not path.is_file():  # of a pipe the read would not end
            raise ConfigError(f"dataset.root={root}: {path} is not a regular file")
    try:
        read = [_tensors(kind(base, train=train)) for train in (True, False)]
    except (RuntimeError, ValueError, AssertionError, LookupError, OSError, EOFError, pickle.PickleError) as error:
        remedy = f"set dataset.download=true to fetch {source.name}, or put {archive} there"
        raise ConfigError(f"dataset.root={root}: {_fault(base / folder, files)}; {remedy}") from error
    for images, labels in read:
        if len(images) != len(labels):
            raise ConfigError(
                f"dataset.root={root}: {base / folder} has {len(images)} images with {len(labels)} labels"
            )
    return read


def _fault(folder: Path, files: Sequence[str]) -> str:
    """Why files in a folder cannot be read: some are absent, else one is damaged."""
    absent = [name for name in files if not (folder / name).is_file()]
    names = " or ".join(filter(None, (", ".join(absent[:-1]), *absent[-1:])))
    return f"no {names} in {folder}" if absent else f"a file in {folder} is damaged"


def _published(kind: Any) -> tuple[str, list[str], str]:
    """Folder and names of the files that a class of torchvision's reads, and what they are published as."""
    if hasattr(kind, "base_folder"):
        files = [name for name, _ in (*kind.train_list, *kind.test_list)]
        return kind.base_folder, [*files, kind.meta["filename"]], f"the files of {kind.filename}"
    files = [name.removesuffix(".gz") for name, _ in kind.resources]
    return f"{kind.__name__}/raw", files, "the four idx files, unpacked,"


def _tensors(read: Any) -> tuple[Tensor, Tensor]:
    """MNIST's classes hold (samples, H, W) tensors, CIFAR's (samples, H, W, 3) arrays and a list."""
    images = torch.as_tensor(read.data)
    images = images[:, None] if images.dim() == 3 else images.permute(0, 3, 1, 2)
    return images.contiguous(), torch.as_tensor(np.asarray(read.targets))
