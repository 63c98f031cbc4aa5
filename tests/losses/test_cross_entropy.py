"""The cross-entropy of class scores, and what it hits."""

import pytest
import torch
from torch import nn

from pipetrain.errors import ConfigError
from pipetrain.losses import CrossEntropy


def test_cross_entropy_counts_hits_among_the_first_and_the_first_five():
    scores = torch.tensor([[6.0, 5, 4, 3, 2, 1, 0], [6.0, 5, 4, 3, 2, 1, 0], [6.0, 5, 4, 3, 2, 1, 0]])
    targets = torch.tensor([0, 4, 6])
    hits = {name: value.item() for name, value in CrossEntropy().metrics(scores, targets).items()}
    assert hits == {"top1": 1, "top5": 2}
    assert CrossEntropy().metrics(scores[:, :5], targets % 5).keys() == {"top1"}


def test_losses_of_auxiliary_heads_are_added_with_their_weight():
    torch.manual_seed(0)
    scores, heads, targets = torch.randn(4, 3), torch.randn(2, 4, 3), torch.tensor([0, 2, 1, 1])
    loss = CrossEntropy(label_smoothing=0.1, auxiliary=0.25)
    own, first, second = (loss(each, targets) for each in (scores, *heads))
    assert loss(scores, *heads, targets).item() == pytest.approx((own + 0.25 * (first + second)).item())
    with pytest.raises(ConfigError, match=r"loss.auxiliary=-1: a number of at least 0"):
        CrossEntropy(auxiliary=-1)


def test_cross_entropy_of_sequences_counts_every_position():
    torch.manual_seed(0)
    scores, targets = torch.randn(2, 7, 5), torch.randint(0, 7, (2, 5))
    loss = CrossEntropy()
    assert loss.count(targets) == 10
    assert loss(scores, targets).item() == pytest.approx(
        nn.functional.cross_entropy(scores.transpose(1, 2).reshape(10, 7), targets.reshape(10)).item()
    )
    assert loss.metrics(scores, targets)["top1"] == (scores.argmax(1) == targets).sum()
