"""GoogLeNet and Inception-V3, with and without their auxiliary heads."""

import pytest
import torch

from pipetrain.engine.losses import CrossEntropy
from pipetrain.zoo.models import inception
from pipetrain.zoo.torchvision_shim import models as tv


def pair(name, auxiliary):
    """Our chain and torchvision's model, from the same seed."""
    torch.manual_seed(3)
    theirs = getattr(tv, name)(weights=None, num_classes=7, aux_logits=auxiliary, init_weights=True)
    torch.manual_seed(3)
    return getattr(inception, name)(3, 7, auxiliary=auxiliary), theirs


def outputs(chain, theirs, x):
    """Of the layers, the whole model and torchvision's, each with the same random draws."""
    found = []
    state = {key: value.clone() for key, value in theirs.state_dict().items()}
    for compute in (chain, chain.module, theirs):
        chain.module.load_state_dict(state)
        torch.manual_seed(0)
        with torch.no_grad():
            made = compute(x)
        found.append(made if isinstance(made, tuple) else (made,))
    return found


@pytest.mark.parametrize(
    ("name", "auxiliary", "size"),
    [
        ("googlenet", True, 32),
        pytest.param("inception_v3", False, 75, marks=pytest.mark.slow),
        pytest.param("inception_v3", True, 299, marks=pytest.mark.slow),
    ],
)
def test_scores_match_torchvision_and_heads_are_training_only(name, auxiliary, size):
    chain, theirs = pair(name, auxiliary)
    assert list(chain.module.state_dict()) == list(theirs.state_dict())
    x = torch.randn(2, 3, size, size)
    ours, whole, other = outputs(chain, theirs, x)
    heads = {"googlenet": 2, "inception_v3": 1}[name] * auxiliary
    assert len(ours) == len(whole) == len(other) == 1 + heads
    assert all(map(torch.equal, ours, other))
    assert all(map(torch.equal, whole, other))
    chain.module.eval()
    for layer in chain.layers:
        layer.eval()
    ours, whole, other = outputs(chain, theirs.eval(), x)
    assert len(ours) == 1
    assert torch.equal(ours[0], other[0])
    assert torch.equal(whole[0], other[0])


def test_head_scores_cross_every_cut_and_heads_learn():
    chain = inception.googlenet(1, 4, auxiliary=True)
    tensors, counts = (torch.randn(2, 1, 32, 32),), []
    for layer in chain.layers:
        outputs = layer(*tensors)
        tensors = outputs if isinstance(outputs, tuple) else (outputs,)
        counts.append(len(tensors))
    assert counts == [1] * 8 + [2] * 3 + [3] * 6
    CrossEntropy()(*tensors, torch.tensor([0, 3])).backward()
    assert all(weight.grad is not None for weight in chain.module.parameters())


def test_first_convolution_follows_channels_and_initialization():
    stem = inception.googlenet(1, 2).module.conv1.conv
    assert stem.weight.shape == (64, 1, 7, 7)
    assert stem.weight.std().item() == pytest.approx(0.01, rel=0.05)
    with torch.device("meta"):
        assert inception.inception_v3(4, 2).module.Conv2d_1a_3x3.conv.weight.shape == (32, 4, 3, 3)
