"""The layers of own_model, against a forward written by hand, bit for bit."""

import torch
from pipetrain import chain_of
from torch.nn import functional

from own_method.model import OwnModel


def test_layers_compute_what_is_written_by_hand() -> None:
    torch.manual_seed(0)
    model, x = OwnModel(channels=1, classes=5, width=4, depth=1), torch.randn(3, 1, 12, 12)
    w = model.state_dict()
    hidden = torch.relu(functional.conv2d(x, w["0.weight"], w["0.bias"], stride=2, padding=1))
    branch = functional.conv2d(hidden, w["2.convolution.weight"], w["2.convolution.bias"], padding=1)
    pooled = functional.adaptive_avg_pool2d(hidden + torch.relu(branch), 1).flatten(1)
    expected = functional.linear(pooled, w["5.weight"], w["5.bias"])

    layers = chain_of(model).layers
    for layer in layers:
        x = layer(x)
    assert torch.equal(x, expected)
    assert len(layers) == 6
