"""Images in one folder per class."""

from collections.abc import Sequence
from pathlib import Path

from pipetrain.data.class_folders import ClassFolders
from pipetrain.data.image_files import IMAGENET_MEAN, IMAGENET_STD, Fit, ImageFiles, opened
from pipetrain.data.images import CropFlip, ImageDataset, Normalize, image_size
from pipetrain.errors import ConfigError

_REMEDY = "put the images at ROOT/train/CLASS/ and ROOT/test/CLASS/"


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
    train = ClassFolders.read(base / "train", root, _REMEDY)
    evaluation = ClassFolders.read(_evaluation(base, root), root, _REMEDY)
    train.check_same(evaluation.classes, evaluation.folder, root)
    height, width = opened(train.samples[0][0]).size[::-1] if size is None else image_size(size)
    normalize = _normalize(mean, std)
    training = ImageFiles(train.samples, Fit((height, width)), normalize, crop(height, width) if augment else None)
    held_out = ImageFiles(evaluation.samples, Fit((height, width)), normalize)
    return ImageDataset(
        train=training.in_memory() if in_memory else training,
        eval=held_out.in_memory() if in_memory else held_out,
        channels=3,
        classes=len(train.classes),
        size=(height, width),
    )


def crop(height: int, width: int) -> CropFlip:
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
    raise ConfigError(f"dataset.root={root}: no folder {base / 'test'} (or val); {_REMEDY}")


def _normalize(mean: Sequence[float], std: Sequence[float]) -> Normalize:
    numbers = all(isinstance(value, int | float) for value in (*mean, *std))
    if not numbers or len(mean) != 3 or len(std) != 3 or min(std) <= 0:
        raise ConfigError(f"dataset.mean={list(mean)} dataset.std={list(std)}: give three numbers each, std above 0")
    return Normalize(mean, std)
