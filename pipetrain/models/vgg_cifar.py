"""VGG-16 for small images, with batch norm and dropout throughout (Liu & Deng 2015)."""

from collections.abc import Iterator

from torch import nn

from pipetrain.models.chain import LayerChain
from pipetrain.models.features_classifier import FeaturesClassifier, chain_of_features, classifier_of

_GROUPS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
_FIRST, _INNER, _CLASSIFIER = 0.3, 0.4, 0.5
"""The shares that dropout takes: after the first convolution, inside the other groups, before linear layers."""


def build(channels: int, classes: int, *, dropout: bool = True) -> LayerChain:
    """Thirteen convolutions with batch norm and three linear layers, the hidden ones 512 wide; any image size.

    There are 15,253,578 parameters for 3 channels and 10 classes. The 15,245,130 that are none of batch norm take the
    58.16 MB of Zhang & Abdelrahman's table 9. Images below 32 x 32 are enlarged to that.

    Args:
        channels: of an image.
        classes: scores that the model gives.
        dropout: whether anything is dropped.
    """
    features = list(_features(channels, float(dropout)))
    model = FeaturesClassifier(features, 1, classifier_of(512, 512, classes, _CLASSIFIER * dropout))
    for part in model.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
            nn.init.zeros_(part.bias)  # type: ignore[arg-type]
    return chain_of_features(model, least=32)


def _features(channels: int, scale: float) -> Iterator[nn.Module]:
    for number, group in enumerate(_GROUPS):
        for i, width in enumerate(group):
            yield nn.Conv2d(channels, width, 3, padding=1)
            yield nn.BatchNorm2d(width)
            yield nn.ReLU()
            if i + 1 < len(group):
                yield nn.Dropout((_INNER if number else _FIRST) * scale)
            channels = width
        yield nn.MaxPool2d(2)
