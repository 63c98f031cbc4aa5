"""VGG-16 for small images, with batch norm and dropout throughout (Liu & Deng 2015)."""

from collections.abc import Iterator

from torch import nn

from pipetrain.errors import check_whole
from pipetrain.models.chain import LayerChain
from pipetrain.models.features_classifier import FeaturesClassifier, chain_of_features, classifier_of

_GROUPS = ((1, 1), (2, 2), (4, 4, 4), (8, 8, 8), (8, 8, 8))
"""Channels of the convolutions, in those of the first."""
_FIRST, _INNER, _CLASSIFIER = 0.3, 0.4, 0.5
"""The shares that dropout takes: after the first convolution, inside the other groups, before linear layers."""


def build(channels: int, classes: int, width: int = 64, *, dropout: bool = True) -> LayerChain:
    """Thirteen convolutions with batch norm and three linear layers, the hidden ones 8 `width` wide; any image size.

    There are 15,253,578 parameters for 3 channels and 10 classes. The 15,245,130 that are none of batch norm take the
    58.16 MB of Zhang & Abdelrahman's table 9. Images below 32 x 32 are enlarged to that.

    Args:
        channels: of an image.
        classes: scores that the model gives.
        width: channels of the first convolution; 64 in the paper, and up to 8 times as many later on.
        dropout: whether anything is dropped.

    Raises:
        ConfigError: `width` is below 1.
    """
    check_whole("model.width", width, least=1)
    features = list(_features(channels, width, float(dropout)))
    model = FeaturesClassifier(features, 1, classifier_of(8 * width, 8 * width, classes, _CLASSIFIER * dropout))
    for part in model.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
            nn.init.zeros_(part.bias)  # type: ignore[arg-type]
    return chain_of_features(model, least=32)


def _features(channels: int, width: int, scale: float) -> Iterator[nn.Module]:
    for number, group in enumerate(_GROUPS):
        for i, times in enumerate(group):
            yield nn.Conv2d(channels, times * width, 3, padding=1)
            yield nn.BatchNorm2d(times * width)
            yield nn.ReLU()
            if i + 1 < len(group):
                yield nn.Dropout((_INNER if number else _FIRST) * scale)
            channels = times * width
        yield nn.MaxPool2d(2)
