"""torchvision's classifiers as layer chains, under torchvision's own names and with its initial weights."""

from typing import Any

from torch import nn

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.models.chain import LayerChain
from pipetrain.zoo.models.image_layers import block_layers, chain_of_features, out_of_place
from pipetrain.zoo.torchvision_shim import models

_DEPTHS = (18, 34, 50, 101, 152)


def resnet(depth: int, channels: int, classes: int) -> LayerChain:
    """torchvision's ResNet with the ImageNet stem, for images of any size.

    Every convolution is a layer of the chain, except a shortcut's, which is in the last layer of its block.

    Raises:
        ConfigError: torchvision has no ResNet of this depth.
    """
    model = _plain_resnet(depth, classes)
    if channels != 3:
        _start(model, with_channels(model.conv1, channels))
    return _resnet_chain(model, [model.maxpool])


def resnet_cifar(depth: int, channels: int, classes: int) -> LayerChain:
    """torchvision's ResNet with a stem for small images: a 3 x 3 convolution of stride 1, and no max-pool.

    Names, layers and all but the first convolution equal `resnet`'s, for any image size.

    Raises:
        ConfigError: torchvision has no ResNet of this depth.
    """
    model = _plain_resnet(depth, classes)
    _start(model, nn.Conv2d(channels, model.conv1.out_channels, 3, padding=1, bias=False))
    model.maxpool = nn.Identity()
    return _resnet_chain(model, [])


def _plain_resnet(depth: int, classes: int) -> Any:
    if depth not in _DEPTHS:
        raise ConfigError(f"model.depth={depth}: torchvision has ResNets of depth {', '.join(map(str, _DEPTHS))}")
    model = getattr(models, f"resnet{depth}")(weights=None, num_classes=classes)
    out_of_place(model)
    return model


def _start(model: Any, conv: nn.Conv2d) -> None:
    """Gives a ResNet another first convolution, with the initial weights that torchvision gives its own."""
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    model.conv1 = conv


def _resnet_chain(model: Any, pool: list[nn.Module]) -> LayerChain:
    layers: list[nn.Module] = [nn.Sequential(model.conv1, model.bn1, nn.ReLU()), *pool]
    for group in (model.layer1, model.layer2, model.layer3, model.layer4):
        for block in group:
            last = 3 if hasattr(block, "conv3") else 2
            pairs = [(getattr(block, f"conv{k}"), getattr(block, f"bn{k}")) for k in range(1, last + 1)]
            layers += block_layers(pairs, block.downsample)
    layers.append(nn.Sequential(model.avgpool, nn.Flatten(), model.fc))
    return LayerChain(model, layers)


def alexnet(channels: int, classes: int) -> LayerChain:
    """torchvision's AlexNet; images below 64, too small for its strides, are enlarged in the first layer."""
    model = models.alexnet(weights=None, num_classes=classes)
    if channels != 3:
        model.features[0] = with_channels(model.features[0], channels)
    return chain_of_features(model, least=64)


def vgg16(channels: int, classes: int) -> LayerChain:
    """torchvision's VGG-16 without batch norm; images below 32 are enlarged to 32 in the first layer."""
    model = models.vgg16(weights=None, num_classes=classes)
    if channels != 3:
        first = model.features[0] = with_channels(model.features[0], channels)
        nn.init.kaiming_normal_(first.weight, mode="fan_out", nonlinearity="relu")
        nn.init.constant_(first.bias, 0)
    return chain_of_features(model, least=32)


def with_channels(conv: Any, channels: int) -> Any:
    """A copy of the convolution for another number of input channels, with torch's own initial weights."""
    bias = conv.bias is not None
    return nn.Conv2d(channels, conv.out_channels, conv.kernel_size, conv.stride, conv.padding, bias=bias)
