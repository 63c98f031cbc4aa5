"""Random images of any shape with a class that can be learned, made when they are read."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pipetrain.engine.errors import check_whole
from pipetrain.engine.seeding import key
from pipetrain.zoo.data.images.common import CropFlip, ImageDataset, image_size

_PATTERNS, _TRAIN, _EVAL = range(3)
_GRID = 4


class SyntheticImages:
    """One split: sample i is of class i mod `classes`, and made from (seed, split, i) alone.

    An image is the sum of its class's pattern, a coarse grid of normal values, and normal noise of every pixel, both
    of variance 1/2: float32 (C, H, W) of about zero mean and unit deviation.
    """

    def __init__(
        self,
        samples: int,
        patterns: Tensor,
        size: tuple[int, int],
        seed: tuple[int, ...],
        augment: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.samples = samples
        self.patterns = patterns
        self.rows, self.columns = (torch.arange(side) * min(_GRID, side) // side for side in size)
        self.seed = seed
        self.augment = augment

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if not 0 <= index < self.samples:
            raise IndexError(index)
        pattern = self.patterns[index % len(self.patterns)]
        signal = pattern.index_select(1, self.rows).index_select(2, self.columns)
        generator = torch.Generator().manual_seed(key(*self.seed, index))
        image = torch.randn(signal.shape, generator=generator).add_(signal).mul_(0.5**0.5)
        return image if self.augment is None else self.augment(image), self.target(index)

    @property
    def targets(self) -> Tensor:
        """The classes of all samples."""
        return torch.arange(self.samples) % len(self.patterns)

    def target(self, index: int) -> Tensor:
        """The class of sample `index`, an int64 scalar."""
        return torch.tensor(index % len(self.patterns))


def synthetic_images(  # noqa: PLR0913  (one for each setting of the choice)
    channels: int = 3,
    size: int | Sequence[int] = 32,
    classes: int = 10,
    train: int = 50_000,
    eval: int = 10_000,
    seed: int = 0,
    *,
    augment: bool = False,
) -> ImageDataset:
    """Random images (`channels`, height, width); nothing is stored.

    `seed` is the data set's own, so that runs of different seeds see the same images. `augment` crops from an image
    padded by 4 and mirrors half of them, in training alone.

    Raises:
        ConfigError: a count or size is below 1.
    """
    counts = {"channels": channels, "classes": classes, "train": train, "eval": eval}
    for name, count in counts.items():
        check_whole(f"dataset.{name}", count, least=1)
    height, width = image_size(size)
    generator = torch.Generator().manual_seed(key(seed, _PATTERNS))
    patterns = torch.randn(classes, channels, min(_GRID, height), min(_GRID, width), generator=generator)
    return ImageDataset(
        train=SyntheticImages(train, patterns, (height, width), (seed, _TRAIN), CropFlip() if augment else None),
        eval=SyntheticImages(eval, patterns, (height, width), (seed, _EVAL)),
        channels=channels,
        classes=classes,
        size=(height, width),
    )
