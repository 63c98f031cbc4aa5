"""LeNet-5 (LeCun et al. 1998), with the ReLU and max pooling that it is trained with today."""

from torch import nn

from pipetrain.errors import ConfigError
from pipetrain.models.chain import LayerChain

_LEAST = 12  # the smaller side of the smallest image that leaves a pixel after both poolings


def build(channels: int, classes: int, size: tuple[int, int]) -> LayerChain:
    """LeNet-5 for images of shape (channels, *size): 5 weight layers, 61,706 parameters for (1, 28, 28).

    Images with a side below 32 are padded by 2 in the first convolution, as MNIST's are in the paper.

    Raises:
        ConfigError: the images are smaller than 12 x 12.
    """
    if min(size) < _LEAST:
        raise ConfigError(f"model.size={tuple(size)}: lenet5 needs images of at least {_LEAST} x {_LEAST}")
    padding = 2 if min(size) < 32 else 0
    height, width = (((side + 2 * padding - 4) // 2 - 4) // 2 for side in size)
    convolutions = [
        ("conv1", nn.Sequential(nn.Conv2d(channels, 6, 5, padding=padding), nn.ReLU())),
        ("pool1", nn.MaxPool2d(2)),
        ("conv2", nn.Sequential(nn.Conv2d(6, 16, 5), nn.ReLU())),
        ("pool2", nn.Sequential(nn.MaxPool2d(2), nn.Flatten())),
    ]
    classifier = [
        ("fc1", nn.Sequential(nn.Linear(16 * height * width, 120), nn.ReLU())),
        ("fc2", nn.Sequential(nn.Linear(120, 84), nn.ReLU())),
        ("fc3", nn.Linear(84, classes)),
    ]
    model = nn.Sequential()
    for name, layer in convolutions + classifier:
        model.add_module(name, layer)
    return LayerChain(model, list(model), list(model._modules))
