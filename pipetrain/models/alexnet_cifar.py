"""AlexNet for small images, as Zhang & Abdelrahman (2021) train it on CIFAR-10."""

from collections.abc import Iterator

from torch import nn

from pipetrain.models.chain import LayerChain
from pipetrain.models.features_classifier import FeaturesClassifier, chain_of_features, classifier_of

_WIDTHS = (64, 192, 384, 256, 256)
_POOLED = (0, 1, 4)
"""The convolutions that a pooling follows."""


def build(channels: int, classes: int) -> LayerChain:
    """Five convolutions with batch norm and three linear layers: 23,296,074 parameters for 3 channels and 10 classes.

    The paper draws no layers. These have the weight memory of its table 9, 88.87 MB, and its eight weight layers; an
    image of 32 x 32 leaves 2 x 2 pixels, as torchvision's AlexNet leaves 6 x 6. Smaller images are enlarged to 32.
    """
    model = FeaturesClassifier(list(_features(channels)), 2, classifier_of(_WIDTHS[-1] * 4, 4096, classes, 0.5))
    return chain_of_features(model, least=32)


def _features(channels: int) -> Iterator[nn.Module]:
    for i, width in enumerate(_WIDTHS):
        kernel, stride = (11, 2) if i == 0 else (3, 1)
        yield nn.Conv2d(channels, width, kernel, stride=stride, padding=kernel // 2)
        yield nn.BatchNorm2d(width)
        yield nn.ReLU()
        if i in _POOLED:
            yield nn.MaxPool2d(2)
        channels = width
