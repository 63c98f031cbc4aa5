"""Images in files, one folder for each class, decoded when they are read."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from pipetrain.data.images.common import CropFlip, ImageDataset, InMemory, Normalize, image_size
from pipetrain.errors import ConfigError, one_line

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and deviation of ImageNet's training images, as torchvision's models are trained with."""

_UNDECODABLE = (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError)
"""Exceptions of pillow's plug-ins for damaged files."""


class ImageFiles:
    """One split: the (file, class) pairs `samples`, read as RGB.

    Args:
        samples: in order.
        shape: an image -> one of the size that all have.
        normalize: makes it float32 (3, H, W).
        augment: changes it before, as uint8.
    """

    reads_files: ClassVar[bool] = True

    def __init__(
        self,
        samples: Sequence[tuple[str, int]],
        shape: Callable[[Image.Image], Image.Image],
        normalize: Normalize,
        augment: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.paths = [path for path, _ in samples]
        self.targets = torch.tensor([target for _, target in samples])
        self.shape = shape
        self.normalize = normalize
        self.augment = augment

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = self._decoded(self.paths[index])
        if self.augment is not None:
            image = self.augment(image)
        return self.normalize(image), self.targets[index]

    def target(self, index: int) -> Tensor:
        """The class of sample `index`, an int64 scalar."""
        return self.targets[index]

    def in_memory(self) -> InMemory:
        """The samples, decoded now.

        Raises:
            ConfigError: one cannot be decoded.
        """
        images = torch.stack([self._decoded(path) for path in self.paths])
        return InMemory(images, self.targets, self.normalize, self.augment)

    def _decoded(self, path: str) -> Tensor:
        """The image of that size, uint8 (3, H, W)."""
        shaped = self.shape(open_image(path))
        return torch.from_numpy(np.array(shaped)).permute(2, 0, 1).contiguous()


class ResizeCrop:
    """Scales an image by its short side, and crops it about the center, to `size`, height and width in pixels."""

    def __init__(self, size: tuple[int, int]) -> None:
        self.size = size

    def __call__(self, image: Image.Image) -> Image.Image:
        """The image of that size; itself where it is."""
        height, width = self.size
        if image.size == (width, height):
            return image
        return ImageOps.fit(image, (width, height), method=Image.Resampling.BILINEAR)


def open_image(path: str) -> Image.Image:
    """The image in a file, as RGB.

    Raises:
        ConfigError: it cannot be decoded.
    """
    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    except _UNDECODABLE as error:
        raise ConfigError(f"dataset: the image {path} cannot be decoded: {error}") from error


_SHOWN = 3


@dataclass(frozen=True)
class ClassFolders:
    """The images below a folder.

    Attributes:
        folder: that holds the folders of the classes.
        classes: their names, in order.
        samples: each image's file, and the number of its class: the first of each class, the second of each, and so
            on, so that the first thousand, to which `dataset.limit` may limit a split, have all classes.
    """

    folder: Path
    classes: list[str]
    samples: list[tuple[str, int]]

    @classmethod
    def read(cls, folder: Path, root: str, remedy: str) -> "ClassFolders":
        """The images of one split, the classes in the order of their names; images may lie in subfolders.

        Args:
            folder: of the split.
            root: the setting dataset.root, for errors.
            remedy: what would work, for errors.

        Raises:
            ConfigError: the folder is missing or has no classes, or one of these has no images.
        """
        from pipetrain.libraries.torchvision_shim import datasets

        if not folder.is_dir():
            raise ConfigError(f"dataset.root={root}: no folder {folder}; {remedy}")
        try:
            read = datasets.ImageFolder(folder)
        except OSError as error:  # what it raises for a class without images, too
            raise ConfigError(f"dataset.root={root}: {folder} cannot be read: {one_line(error)}; {remedy}") from error
        return cls(folder, read.classes, _class_by_class(read.samples))

    def check_same(self, others: Collection[str], where: Path, root: str) -> None:
        """Checks that `where` has the same classes.

        Raises:
            ConfigError: the two differ.
        """
        differ = sorted(set(self.classes) ^ set(others))
        if differ:
            raise ConfigError(
                f"dataset.root={root}: {self.folder} has {len(self.classes)} classes and {where} has {len(others)}; "
                f"they differ in {_some(differ)}"
            )


def _class_by_class(samples: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """The samples, sorted by their place in their class."""
    seen: Counter[int] = Counter()
    places = []
    for path, target in samples:
        places.append((seen[target], target, path))
        seen[target] += 1
    return [(path, target) for _, target, path in sorted(places)]


def _some(names: list[str]) -> str:
    further = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + further


_FOLDER_REMEDY = "put the images at ROOT/train/CLASS/ and ROOT/test/CLASS/"


def image_folder(
    root: str = "data",
    size: int | Sequence[int] | None = None,
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
    *,
    in_memory: bool = False,
    augment: bool = False,
) -> ImageDataset:
    """Images at `root`/train/CLASS/FILE and `root`/test/CLASS/FILE (or val), the classes in the order of their names.

    Images become RGB, float32 (3, H, W), scaled by their short side and cropped about the center to `size` (a side or
    [height, width] in pixels; None for the first training image's own), then normalized with `mean` and `std` of
    values in [0, 1]. `augment` pads an image by an eighth of its short side, crops it at random and mirrors half of
    them, in training alone. `in_memory` decodes all images at the start, 3 H W bytes each, instead of in every epoch.

    Raises:
        ConfigError: folders are missing or empty, or the two splits have different classes; with `in_memory`, an image
            cannot be decoded.
    """
    base = _base(root)
    train = ClassFolders.read(base / "train", root, _FOLDER_REMEDY)
    evaluation = ClassFolders.read(_evaluation(base, root), root, _FOLDER_REMEDY)
    train.check_same(evaluation.classes, evaluation.folder, root)
    height, width = open_image(train.samples[0][0]).size[::-1] if size is None else image_size(size)
    normalize = _normalize(mean, std)
    training = ImageFiles(
        train.samples, ResizeCrop((height, width)), normalize, random_crop(height, width) if augment else None
    )
    held_out = ImageFiles(evaluation.samples, ResizeCrop((height, width)), normalize)
    return ImageDataset(
        train=training.in_memory() if in_memory else training,
        eval=held_out.in_memory() if in_memory else held_out,
        channels=3,
        classes=len(train.classes),
        size=(height, width),
    )


def random_crop(height: int, width: int) -> CropFlip:
    """The augmentation of images of this size, which pads them by an eighth of the short side."""
    return CropFlip(padding=max(1, min(height, width) // 8))


def _base(root: str) -> Path:
    base = Path(root).expanduser().absolute()
    if base.suffix.lower() == ".zip" and base.is_file():
        raise ConfigError(f"dataset.root={root}: unpack {base} and name the folder that holds train/ and test/")
    return base


def _evaluation(base: Path, root: str) -> Path:
    for name in ("test", "val"):
        if (base / name).is_dir():
            return base / name
    raise ConfigError(f"dataset.root={root}: no folder {base / 'test'} (or val); {_FOLDER_REMEDY}")


def _normalize(mean: Sequence[float], std: Sequence[float]) -> Normalize:
    numbers = all(isinstance(value, int | float) for value in (*mean, *std))
    if not numbers or len(mean) != 3 or len(std) != 3 or min(std) <= 0:
        raise ConfigError(f"dataset.mean={list(mean)} dataset.std={list(std)}: give three numbers each, std above 0")
    return Normalize(mean, std)
