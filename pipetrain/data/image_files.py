"""Images in files, decoded when they are read."""

from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from pipetrain.data.images import InMemory, Normalize
from pipetrain.errors import ConfigError

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of ImageNet's training images, as torchvision's models are trained with."""

_UNDECODABLE = (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError)
"""What pillow's plug-ins raise for damaged files."""


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
        """The same samples, decoded now.

        Raises:
            ConfigError: one cannot be decoded.
        """
        images = torch.stack([self._decoded(path) for path in self.paths])
        return InMemory(images, self.targets, self.normalize, self.augment)

    def _decoded(self, path: str) -> Tensor:
        """The image of that size, uint8 (3, H, W)."""
        shaped = self.shape(opened(path))
        return torch.from_numpy(np.array(shaped)).permute(2, 0, 1).contiguous()


class Fit:
    """Scales an image by its short side, and crops it about the center, to `size`, height and width in pixels."""

    def __init__(self, size: tuple[int, int]) -> None:
        self.size = size

    def __call__(self, image: Image.Image) -> Image.Image:
        """The image of that size; itself where it is."""
        height, width = self.size
        if image.size == (width, height):
            return image
        return ImageOps.fit(image, (width, height), method=Image.Resampling.BILINEAR)


def opened(path: str) -> Image.Image:
    """The image in a file, as RGB.

    Raises:
        ConfigError: it cannot be decoded.
    """
    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    except _UNDECODABLE as error:
        raise ConfigError(f"dataset: the image {path} cannot be decoded: {error}") from error
