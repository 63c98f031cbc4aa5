"""VGG-16 for small images."""

import torch
from torch import nn

from pipetrain.zoo.models import small_images


def test_dropout_can_be_switched_off():
    with torch.device("meta"):
        rates = {
            on: [
                part.p
                for part in small_images.vgg16_cifar(3, 10, dropout=on).module.modules()
                if isinstance(part, nn.Dropout)
            ]
            for on in (True, False)
        }
    assert rates[True] == [0.3, *[0.4] * 7, 0.5, 0.5]
    assert rates[False] == [0.0] * 10
