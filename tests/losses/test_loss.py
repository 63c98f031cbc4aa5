"""Losses of any kind."""

import torch
from torch import nn

from pipetrain.losses import on_device


def test_loss_with_buffers_moves_to_the_device_and_a_function_stays():
    weighted = nn.CrossEntropyLoss(weight=torch.ones(3))
    assert on_device(weighted, torch.device("meta")).weight.device.type == "meta"
    assert on_device(torch.dist, torch.device("meta")) is torch.dist
