"""Images in files, one folder for each class, decoded when they are read."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from pipetrain.data.files.regular_file import opened
from pipetrain.engine.errors import ConfigError, one_line
from pipetrain.zoo.data.images.common import CropFlip, ImageDataset, LabelledImages, Normalize, image_size

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and deviation of ImageNet's training images, as torchvision's models are trained with."""

_UNDECODABLE = (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError)
"""Exceptions of pillow's plug-ins for damaged files."""


class ImageFiles:
    """Images in files, decoded when they are read: uint8 (3, H, W). `shape` gives all the same size."""

    def __init__(self, paths: Sequence[str], shape: Callable[[Image.Image], Image.Image]) -> None:
        self.paths = paths
        self.shape = shape

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Tensor:
        shaped = self.shape(open_image(self.paths[index]))
        return torch.from_numpy(np.array(shaped)).permute(2, 0, 1).contiguous()


def labelled_files(
    samples: Sequence[tuple[str, int]],
    shape: Callable[[Image.Image], Image.Image],
    normalize: Normalize,
    augment: Callable[[Tensor], Tensor] | None = None,
    *,
    in_memory: bool = False,
) -> LabelledImages:
    """One split of (file, class) pairs, decoded as RGB when they are read, or now if `in_memory`.

    Raises:
        ConfigError: with `in_memory`, a file cannot be decoded.
    """
    paths, classes = zip(*samples, strict=True)
    files = ImageFiles(paths, shape)
    images = torch.stack([files[index] for index in range(len(files))]) if in_memory else files
    return LabelledImages(images, torch.tensor(classes), normalize, augment)


def resize_crop(height: int, width: int) -> Callable[[Image.Image], Image.Image]:
    """Scales an image by its short side, and crops it about the center."""
    return partial(ImageOps.fit, size=(width, height), method=Image.Resampling.BILINEAR)


def open_image(path: str) -> Image.Image:
    """The image in a file, as RGB, turned as its EXIF data say; 16 bits of gray become 8.

    Raises:
        ConfigError: it cannot be decoded, or has numbers whose range the file does not say.
    """
    try:
        with opened(path) as file, Image.open(file) as image:
            ImageOps.exif_transpose(image, in_place=True)
            if image.mode.startswith("I;16") or (image.mode == "I" and image.format in _GRAY_16):
                return Image.fromarray(_eight_bits(np.asarray(image))).convert("RGB")
            if image.mode not in ("I", "F"):
                return image.convert("RGB")
    except UnidentifiedImageError:
        raise ConfigError(f"dataset: the image {path} cannot be decoded: pillow knows no such format") from None
    except _UNDECODABLE as error:
        raise ConfigError(f"dataset: the image {path} cannot be decoded: {error}") from error
    kind = "32-bit numbers" if image.mode == "I" else "floating-point numbers"
    raise ConfigError(
        f"dataset: the image {path} has {kind}, whose range from black to white is unknown; convert it to 8 or 16 bits"
    )


_GRAY_16 = ("PNG", "PPM")
"""Formats of which pillow opens 16 bits of gray as 32-bit numbers."""


def _eight_bits(gray: NDArray[Any]) -> NDArray[np.uint8]:
    """Numbers of 16 bits, scaled so that 65535 becomes 255."""
    return ((gray.astype(np.uint32) + 128) // 257).astype(np.uint8)


_LISTED = 3
"""Classes named in an error."""


@dataclass(frozen=True)
class ClassFolders:
    """The images below a folder.

    Attributes:
        folder: that holds the folders of the classes.
        classes: their names, in order.
        samples: each image's file, and the number of its class: the first of each class, the second of each, and so
            on, so that the first thousand, to which `dataset.limit` may limit a split, have all classes.
        left_out: the number of other files by the ends of their names, such as `.txt`.
    """

    folder: Path
    classes: list[str]
    samples: list[tuple[str, int]]
    left_out: Counter[str] = field(default_factory=Counter)

    @classmethod
    def read(cls, folder: Path, root: str, remedy: str) -> "ClassFolders":
        """The images of one split, the classes in the order of their names; images may lie in subfolders.

        Raises:
            ConfigError: the folder is missing or has no classes, or one of these has no images; `remedy` would work.
        """
        from pipetrain.zoo.torchvision_shim import datasets

        left_out = Counter[str]()

        def is_image(path: str) -> bool:
            found = path.lower().endswith(datasets.folder.IMG_EXTENSIONS)
            left_out.update(() if found else [Path(path).suffix or Path(path).name])
            return found

        if not folder.is_dir():
            raise ConfigError(f"dataset.root={root}: no folder {folder}; {remedy}")
        try:
            read = datasets.ImageFolder(folder, is_valid_file=is_image)
        except OSError as error:  # what it raises for a class without images, too
            raise ConfigError(f"dataset.root={root}: {folder} cannot be read: {one_line(error)}; {remedy}") from error
        return cls(folder, read.classes, _class_by_class(read.samples), left_out)

    def check_same(self, others: Collection[str], where: Path, root: str) -> None:
        """Raises a ConfigError if the classes of `where` differ."""
        differ = sorted(set(self.classes) ^ set(others))
        if differ:
            further = f" and {len(differ) - _LISTED} more" if len(differ) > _LISTED else ""
            raise ConfigError(
                f"dataset.root={root}: {self.folder} has {len(self.classes)} classes and {where} has {len(others)}; "
                f"they differ in {', '.join(differ[:_LISTED])}{further}"
            )


def _class_by_class(samples: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """The samples, sorted by their place in their class."""
    seen: Counter[int] = Counter()
    places = []
    for path, target in samples:
        places.append((seen[target], target, path))
        seen[target] += 1
    return [(path, target) for _, target, path in sorted(places)]


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
    base = Path(root).expanduser().absolute()
    if base.suffix.lower() == ".zip" and base.is_file():
        raise ConfigError(f"dataset.root={root}: unpack {base} and name the folder that holds train/ and test/")
    train = ClassFolders.read(base / "train", root, _FOLDER_REMEDY)
    held_out = next((base / name for name in ("test", "val") if (base / name).is_dir()), None)
    if held_out is None:
        raise ConfigError(f"dataset.root={root}: no folder {base / 'test'} (or val); {_FOLDER_REMEDY}")
    evaluation = ClassFolders.read(held_out, root, _FOLDER_REMEDY)
    train.check_same(evaluation.classes, evaluation.folder, root)
    height, width = open_image(train.samples[0][0]).size[::-1] if size is None else image_size(size)
    _check_normalization(mean, std)
    normalize, fit = Normalize(mean, std), resize_crop(height, width)
    crop = random_crop(height, width) if augment else None
    return ImageDataset(
        train=labelled_files(train.samples, fit, normalize, crop, in_memory=in_memory),
        eval=labelled_files(evaluation.samples, fit, normalize, in_memory=in_memory),
        channels=3,
        classes=len(train.classes),
        size=(height, width),
        notes=_left_out(root, train.left_out + evaluation.left_out),
    )


def _check_normalization(mean: Sequence[float], std: Sequence[float]) -> None:
    numbers = all(isinstance(value, int | float) for value in (*mean, *std))
    if not numbers or len(mean) != 3 or len(std) != 3 or min(std) <= 0:
        raise ConfigError(f"dataset.mean={list(mean)} dataset.std={list(std)}: give three numbers each, std above 0")


def _left_out(root: str, files: Counter[str]) -> list[str]:
    """A line on the files that are no images, if there are any."""
    if not files:
        return []
    from pipetrain.zoo.torchvision_shim import datasets

    listed = ", ".join(f"{count} {name}" for name, count in files.most_common(_LISTED))
    further = ", ..." if len(files) > _LISTED else ""
    images = " ".join(datasets.folder.IMG_EXTENSIONS)
    return [f"dataset.root={root}: left out, as their names are not of images: {listed}{further}; images are {images}"]


def random_crop(height: int, width: int) -> CropFlip:
    """The augmentation of images of this size, which pads them by an eighth of the short side."""
    return CropFlip(padding=max(1, min(height, width) // 8))
