"""What a loss averages over, and which metrics it reports."""

import pytest
import torch
from torch import nn

from pipetrain.errors import ConfigError
from pipetrain.losses import CrossEntropy, count_of, has_perplexity, hits_of, on_device, percent, step_loss


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


def test_loss_of_the_users_own_counts_samples_and_may_have_no_metrics():
    targets = (torch.zeros(3, 4), torch.zeros(3))
    assert count_of(nn.MSELoss(), targets[:1]) == 3
    assert hits_of(nn.MSELoss(), (torch.zeros(3),), targets[1:]) == {}
    assert count_of(CrossEntropy(), (torch.zeros(3, 4),)) == 12


def test_loss_of_a_minibatch_weighs_microbatches_by_what_they_count():
    losses = [torch.tensor(1.0), torch.tensor(4.0, dtype=torch.float64)]
    mean = step_loss(losses, [3, 1])
    assert (mean.item(), mean.dtype) == (1.75, torch.float32)


@pytest.mark.parametrize("loss", [nn.NLLLoss(ignore_index=0), nn.CrossEntropyLoss(ignore_index=0)])
def test_losses_of_torchs_own_count_and_hit_the_classes_that_they_do_not_ignore(loss):
    scores = torch.tensor([[[3.0, 1.0, 2.0], [2.0, 3.0, 1.0]], [[1.0, 3.0, 2.0], [1.0, 2.0, 3.0]]]).transpose(1, 2)
    targets = torch.tensor([[0, 1], [2, 2]])
    assert count_of(loss, (targets,)) == 3
    assert hits_of(loss, (scores,), (targets,)) == {"top1": 2}
    assert count_of(loss, (torch.zeros_like(targets),)) == 1  # nothing to divide by is left out


def test_losses_of_torchs_own_have_no_hits_where_targets_are_no_classes():
    shares = torch.tensor([[0.5, 0.5]])
    assert hits_of(nn.CrossEntropyLoss(), (shares,), (shares,)) == {}
    assert count_of(nn.CrossEntropyLoss(), (shares,)) == 1


@pytest.mark.parametrize(
    ("loss", "shape", "expected"),
    [
        (CrossEntropy(), (2, 5), True),
        (nn.NLLLoss(), (2, 5), True),
        (CrossEntropy(), (2,), False),
        (CrossEntropy(), (2, 5, 5), False),
        (CrossEntropy(label_smoothing=0.1), (2, 5), False),
        (nn.CrossEntropyLoss(weight=torch.ones(3)), (2, 5), False),
        (nn.MSELoss(), (2, 5), False),
    ],
)
def test_perplexity_is_that_of_a_plain_cross_entropy_of_sequences(loss, shape, expected):
    assert has_perplexity(loss, (torch.zeros(shape, dtype=torch.long),)) == expected


def test_loss_with_buffers_moves_to_the_device_and_a_function_stays():
    weighted = nn.CrossEntropyLoss(weight=torch.ones(3))
    assert on_device(weighted, torch.device("meta")).weight.device.type == "meta"
    assert on_device(torch.dist, torch.device("meta")) is torch.dist


def test_percent_is_of_a_hundred():
    assert percent(3, 8) == 37.5
