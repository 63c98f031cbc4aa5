"""Random images stored as bytes, which are normalized when they are read, or on the device."""

import torch

from pipetrain.zoo.data.images.common import CropFlip, ImageDataset, LabelledImages, Normalize

CHANNELS, CLASSES, SIZE = 3, 4, 8


def build(train: int = 22, evaluation: int = 10) -> ImageDataset:
    generator = torch.Generator().manual_seed(0)
    normalize = Normalize((0.4, 0.5, 0.6), (0.2, 0.25, 0.3))

    def split(samples, augment=None):
        images = torch.randint(0, 256, (samples, CHANNELS, SIZE, SIZE), dtype=torch.uint8, generator=generator)
        return LabelledImages(images, torch.arange(samples) % CLASSES, normalize, augment)

    return ImageDataset(split(train, CropFlip(2)), split(evaluation), CHANNELS, CLASSES, (SIZE, SIZE))
