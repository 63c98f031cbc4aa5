"""A data set: noisy images with one bright row, whose position is the label."""

import torch
from torch.utils import data


class OwnDataset:
    """The data object; models read `channels`, `classes` and `size`. The samples are the same in every process.

    `train` and `eval` may be any map-style data sets, such as some that read files: docs/your-own.md of pipetrain.
    """

    def __init__(self, classes: int = 10, size: int = 28, noise: float = 0.5, samples: int = 2000) -> None:
        self.channels, self.classes, self.size = 1, classes, size
        self.train = self._split(samples, noise, seed=0)
        self.eval = self._split(samples // 4, noise, seed=1)

    def _split(self, samples: int, noise: float, seed: int) -> data.TensorDataset:
        """Images of shape (samples, 1, size, size), and labels of shape (samples,)."""
        generator, labels = torch.Generator().manual_seed(seed), torch.arange(samples) % self.classes
        images = noise * torch.randn(samples, 1, self.size, self.size, generator=generator)
        images[torch.arange(samples), 0, labels * self.size // self.classes] += 1
        return data.TensorDataset(images, labels)
