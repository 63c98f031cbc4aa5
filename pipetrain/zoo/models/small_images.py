"""LeNet-5, and AlexNet and VGG-16 in forms for small images."""

from collections import OrderedDict
from collections.abc import Iterator

from torch import nn

from pipetrain.engine.errors import ConfigError, check_whole
from pipetrain.engine.models.chain import LayerChain
from pipetrain.zoo.models.image_layers import FeaturesClassifier, chain_of_features, classifier_of

_SMALLEST = 12  # the smaller side of the smallest image that leaves a pixel after both poolings


def lenet5(channels: int, classes: int, size: tuple[int, int]) -> LayerChain:
    """LeNet-5 for images of shape (channels, *size): 5 weight layers, 61,706 parameters for (1, 28, 28).

    Images with a side below 32 are padded by 2 in the first convolution, as MNIST's are in the paper.

    Raises:
        ConfigError: the images are smaller than 12 x 12.
    """
    if min(size) < _SMALLEST:
        raise ConfigError(f"model.size={tuple(size)}: lenet5 needs images of at least {_SMALLEST} x {_SMALLEST}")
    padding = 2 if min(size) < 32 else 0
    height, width = (((side + 2 * padding - 4) // 2 - 4) // 2 for side in size)
    layers: dict[str, nn.Module] = {
        "conv1": nn.Sequential(nn.Conv2d(channels, 6, 5, padding=padding), nn.ReLU()),
        "pool1": nn.MaxPool2d(2),
        "conv2": nn.Sequential(nn.Conv2d(6, 16, 5), nn.ReLU()),
        "pool2": nn.Sequential(nn.MaxPool2d(2), nn.Flatten()),
        "fc1": nn.Sequential(nn.Linear(16 * height * width, 120), nn.ReLU()),
        "fc2": nn.Sequential(nn.Linear(120, 84), nn.ReLU()),
        "fc3": nn.Linear(84, classes),
    }
    return LayerChain(nn.Sequential(OrderedDict(layers)), list(layers.values()), list(layers))


_ALEXNET_WIDTHS = (64, 192, 384, 256, 256)
_ALEXNET_POOLED = (0, 1, 4)
"""The convolutions that a pooling follows."""


def alexnet_cifar(channels: int, classes: int) -> LayerChain:
    """Five convolutions with batch norm and three linear layers: 23,296,074 parameters for 3 channels and 10 classes.

    The paper draws no layers. These have the weight memory of its table 9, 88.87 MB, and its eight weight layers; an
    image of 32 x 32 leaves 2 x 2 pixels, as torchvision's AlexNet leaves 6 x 6. Smaller images are enlarged to 32.
    """
    model = FeaturesClassifier(
        list(_alexnet_features(channels)), 2, classifier_of(_ALEXNET_WIDTHS[-1] * 4, 4096, classes, 0.5)
    )
    return chain_of_features(model, least=32)


def _alexnet_features(channels: int) -> Iterator[nn.Module]:
    for i, width in enumerate(_ALEXNET_WIDTHS):
        kernel, stride = (11, 2) if i == 0 else (3, 1)
        yield nn.Conv2d(channels, width, kernel, stride=stride, padding=kernel // 2)
        yield nn.BatchNorm2d(width)
        yield nn.ReLU()
        if i in _ALEXNET_POOLED:
            yield nn.MaxPool2d(2)
        channels = width


_VGG_GROUPS = ((1, 1), (2, 2), (4, 4, 4), (8, 8, 8), (8, 8, 8))
"""Channels of the convolutions, in multiples of the first one's."""
_FIRST, _INNER, _CLASSIFIER = 0.3, 0.4, 0.5
"""Dropout probabilities: after the first convolution, inside later groups, before linear layers."""


def vgg16_cifar(channels: int, classes: int, width: int = 64, *, dropout: bool = True) -> LayerChain:
    """Thirteen convolutions with batch norm and three linear layers, the hidden ones 8 `width` wide; any image size.

    There are 15,253,578 parameters for 3 channels and 10 classes. Without those of batch norm, 15,245,130 take the
    58.16 MB of Zhang & Abdelrahman's table 9. Images below 32 x 32 are enlarged to that. The first convolution has
    `width` channels, 64 in the paper, later ones up to 8 times more.

    Raises:
        ConfigError: `width` is below 1.
    """
    check_whole("model.width", width, least=1)
    features = list(_vgg_features(channels, width, float(dropout)))
    model = FeaturesClassifier(features, 1, classifier_of(8 * width, 8 * width, classes, _CLASSIFIER * dropout))
    for part in model.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
            nn.init.zeros_(part.bias)  # type: ignore[arg-type]
    return chain_of_features(model, least=32)


def _vgg_features(channels: int, width: int, scale: float) -> Iterator[nn.Module]:
    for number, group in enumerate(_VGG_GROUPS):
        for i, times in enumerate(group):
            yield nn.Conv2d(channels, times * width, 3, padding=1)
            yield nn.BatchNorm2d(times * width)
            yield nn.ReLU()
            if i + 1 < len(group):
                yield nn.Dropout((_INNER if number else _FIRST) * scale)
            channels = times * width
        yield nn.MaxPool2d(2)
