"""The subset of Fashion-MNIST bundled with the package."""

from importlib import resources

import numpy as np
import torch
from torch import Tensor

from pipetrain.data.images import CropFlip, ImageDataset, InMemory, Normalize

MEAN, STD = (0.2860,), (0.3530,)
"""Of the 60,000 training images, scaled to [0, 1]."""


def fashion_mnist_mini(*, augment: bool = False) -> ImageDataset:
    """The first 600 training and 200 test images of each class of Fashion-MNIST, held in memory.

    Images are float32 (1, 28, 28), normalized with the whole data set's mean and deviation. `augment` crops from an
    image padded by 4 and mirrors half of them, in training alone. Source: Xiao, Rasul, Vollgraf 2017, MIT license.
    """
    normalize = Normalize(MEAN, STD)
    arrays = _arrays()
    return ImageDataset(
        train=InMemory(arrays["train_images"], arrays["train_labels"], normalize, CropFlip() if augment else None),
        eval=InMemory(arrays["test_images"], arrays["test_labels"], normalize),
        channels=1,
        classes=10,
        size=(28, 28),
    )


def _arrays() -> dict[str, Tensor]:
    file = resources.files("pipetrain.data") / "fashion_mnist_mini.npz"
    with file.open("rb") as stream, np.load(stream) as archive:
        arrays = {name: torch.from_numpy(archive[name]) for name in archive.files}
    return {name: array[:, None] if name.endswith("images") else array for name, array in arrays.items()}
