"""Common parts of image data sets: splits, normalization, augmentation, downloads."""

import errno
import fcntl
import os
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from pipetrain.data.files.regular_file import descriptor_of
from pipetrain.data.interface import MapStyle
from pipetrain.engine.errors import ConfigError, as_configured, is_whole, one_line
from pipetrain.engine.tensors import Tensors


@dataclass(frozen=True)
class ImageDataset:
    """The two splits of an image classification task.

    Attributes:
        size: height and width of the images in pixels.
        notes: lines for the user, such as on files that are left out.
    """

    train: MapStyle
    eval: MapStyle
    channels: int
    classes: int
    size: tuple[int, int]
    notes: Sequence[str] = ()


class Normalize:
    """uint8 images (…, C, H, W) to float32, in [0, 1] and then to zero mean and unit deviation per channel.

    The operations, their order and the bits equal torchvision's ToTensor and Normalize, on any device.
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        self._constants = tuple(mean), tuple(std)

    def __call__(self, images: Tensor) -> Tensor:
        """The normalized copy of `images`."""
        largest, mean, std = _on_device(*self._constants, images.device)
        return images.to(torch.float32).div_(largest).sub_(mean).div_(std)


@cache
def _on_device(mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """The largest byte, the mean and the deviation; by a number, unlike a tensor, CUDA does not divide exactly."""
    largest, *each = (torch.tensor(values, dtype=torch.float32, device=device) for values in (255, mean, std))
    return largest, each[0][:, None, None], each[1][:, None, None]


class CropFlip:
    """Augmentation of residual networks (He et al. 2016, § 4.2): pad with zeros, crop at random, mirror half of them.

    One number is drawn from torch's default generator for an image. torchvision's transforms do the same in ten times
    the time.
    """

    def __init__(self, padding: int = 4, *, flip: bool = True) -> None:
        self.padding = padding
        self.flip = flip

    def __call__(self, image: Tensor) -> Tensor:
        """`image` (C, H, W) moved by up to `padding` pixels each way, and perhaps mirrored."""
        height, width = image.shape[-2:]
        offsets = 2 * self.padding + 1
        draw = int(torch.randint(2 * offsets * offsets, ()))
        mirrored, offset = divmod(draw, offsets * offsets)
        top, left = divmod(offset, offsets)
        padded = torch.nn.functional.pad(image, (self.padding,) * 4)
        cropped = padded[:, top : top + height, left : left + width]
        return cropped.flip(-1) if self.flip and mirrored else cropped


class LabelledImages:
    """One split: images with their classes.

    Args:
        images: uint8 (C, H, W) each; one tensor, or `ImageFiles`, which are decoded when they are read.
        targets: the classes, whole numbers (samples,).
        normalize: makes an image float32.
        augment: changes it before, as uint8.
    """

    def __init__(
        self,
        images: MapStyle,
        targets: Tensor,
        normalize: Normalize,
        augment: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.images = images
        self.targets = targets.to(torch.int64)
        self.normalize = normalize
        self.augment = augment
        self.reads_files = not isinstance(images, Tensor)

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image, target = self.stored(index)
        return self.normalize(image), target

    def stored(self, index: int) -> tuple[Tensor, Tensor]:
        """Sample `index` before it is normalized, augmented, as uint8."""
        image = self.images[index]
        return image if self.augment is None else self.augment(image), self.targets[index]

    def on_device(self, inputs: Tensors) -> Tensors:
        """The normalized images of a minibatch."""
        return (self.normalize(inputs[0]),)

    def target(self, index: int) -> Tensor:
        """The class of sample `index`, an int64 scalar."""
        return self.targets[index]


def image_size(size: int | Sequence[int], key: str = "dataset.size") -> tuple[int, int]:
    """Height and width of a setting that gives one number for both, or two.

    Raises:
        ConfigError: it gives anything else; the error names the setting `key`.
    """
    sides = tuple(size) if isinstance(size, Sequence) else (size, size)
    if len(sides) != 2 or not all(is_whole(side) and side > 0 for side in sides):
        raise ConfigError(f"{key}={as_configured(size)}: give the images' side in pixels, or [height, width]")
    return sides[0], sides[1]


@contextmanager
def downloading(what: str, base: Path, root: str) -> Iterator[None]:
    """Lets one process at a time download `what` into `base`, which is made if it is missing.

    Raises:
        ConfigError: nothing can be written there, which is the setting dataset.root=`root`, or the download failed.
    """
    try:
        base.mkdir(parents=True, exist_ok=True)
        lock = descriptor_of(base / ".pipetrain.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
    except OSError as error:
        reason = f"{error.filename} is a symbolic link" if error.errno == errno.ELOOP else error.strerror
        raise ConfigError(f"dataset.root={root}: cannot write to {base}: {reason}") from error
    with os.fdopen(lock) as file:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        except (RuntimeError, OSError, zipfile.BadZipFile) as error:
            problem = f"{what} could not be fetched into {base}: {one_line(error)}"
            raise ConfigError(f"dataset.download=true: {problem}") from error
