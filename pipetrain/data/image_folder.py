"""Images in one folder per class."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from pipetrain.data.images import CropFlip, ImageDataset, Normalize, image_size
from pipetrain.errors import ConfigError, one_line

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of ImageNet's training images, as torchvision's models are trained with."""


class FolderImages:
    """One split: image files decoded when they are read, scaled and cropped about the center to one size."""

    def __init__(
        self,
        samples: Sequence[tuple[str, int]],
        size: tuple[int, int],
        normalize: Normalize,
        augment: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.paths = [path for path, _ in samples]
        self.targets = torch.tensor([target for _, target in samples])
        self.size = size
        self.normalize = normalize
        self.augment = augment

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = torch.from_numpy(np.array(self._decode(self.paths[index]))).permute(2, 0, 1).contiguous()
        if self.augment is not None:
            image = self.augment(image)
        return self.normalize(image), self.targets[index]

    def target(self, index: int) -> Tensor:
        """The class of sample `index`, an int64 scalar."""
        return self.targets[index]

    def _decode(self, path: str) -> Image.Image:
        height, width = self.size
        image = _open(path)
        if image.size == (width, height):
            return image
        return ImageOps.fit(image, (width, height), method=Image.Resampling.BILINEAR)


def image_folder(
    root: str = "data",
    size: int | Sequence[int] | None = None,
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
    *,
    augment: bool = False,
) -> ImageDataset:
    """Images at `root`/train/CLASS/FILE and `root`/test/CLASS/FILE (or val), the classes in the order of their names.

    Images become RGB, float32 (3, H, W), scaled by their short side and cropped about the center to `size` (a side or
    [height, width] in pixels; None for the first training image's own), then normalized with `mean` and `std` of
    values in [0, 1]. `augment` pads an image by an eighth of its short side, crops it at random and mirrors half of
    them, in training alone.

    Raises:
        ConfigError: folders are missing or empty, or the two splits have different classes.
    """
    base = _base(root)
    train, evaluation = _classes(base / "train", root), _classes(_evaluation(base, root), root)
    if train.classes != evaluation.classes:
        differ = ", ".join(sorted(set(train.classes) ^ set(evaluation.classes)))
        raise ConfigError(f"dataset.root={root}: {train.root} and {evaluation.root} differ in the classes {differ}")
    height, width = _open(train.samples[0][0]).size[::-1] if size is None else image_size(size)
    normalize = _normalize(mean, std)
    crop = CropFlip(padding=max(1, min(height, width) // 8)) if augment else None
    return ImageDataset(
        train=FolderImages(train.samples, (height, width), normalize, crop),
        eval=FolderImages(evaluation.samples, (height, width), normalize),
        channels=3,
        classes=len(train.classes),
        size=(height, width),
    )


def _base(root: str) -> Path:
    base = Path(root).expanduser().absolute()
    if base.suffix.lower() == ".zip" and base.is_file():
        raise ConfigError(f"dataset.root={root}: unpack {base} and name the folder that holds train/ and test/")
    return base


def _evaluation(base: Path, root: str) -> Path:
    for name in ("test", "val"):
        if (base / name).is_dir():
            return base / name
    raise ConfigError(f"dataset.root={root}: no folder {base / 'test'} (or val); {_REMEDY}")


_REMEDY = "put the images at ROOT/train/CLASS/ and ROOT/test/CLASS/"


def _classes(folder: Path, root: str) -> Any:
    """torchvision's ImageFolder of one split: its `root`, `classes` and `samples`."""
    from pipetrain.torchvision_shim import datasets

    if not folder.is_dir():
        raise ConfigError(f"dataset.root={root}: no folder {folder}; {_REMEDY}")
    try:
        return datasets.ImageFolder(folder)
    except OSError as error:  # what it raises for a class without images, too
        raise ConfigError(f"dataset.root={root}: {folder} cannot be read: {one_line(error)}") from error


def _open(path: str) -> Image.Image:
    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:  # pillow's plug-ins raise SyntaxError
        raise ConfigError(f"dataset: the image {path} cannot be decoded: {error}") from error


def _normalize(mean: Sequence[float], std: Sequence[float]) -> Normalize:
    numbers = all(isinstance(value, int | float) for value in (*mean, *std))
    if not numbers or len(mean) != 3 or len(std) != 3 or min(std) <= 0:
        raise ConfigError(f"dataset.mean={list(mean)} dataset.std={list(std)}: give three numbers each, std above 0")
    return Normalize(mean, std)
