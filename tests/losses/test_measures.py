"""What can be measured with a loss, ours, torch's or a user's own."""

import pytest
import torch
from torch import nn

from pipetrain.losses import (
    CrossEntropy,
    TokenCrossEntropy,
    classes_of,
    count_of,
    counts_tokens,
    hits_of,
    log_loss_of,
)


def test_loss_of_the_users_own_counts_samples_and_may_have_no_metrics():
    targets = (torch.zeros(3, 4), torch.zeros(3))
    assert count_of(nn.MSELoss(), targets[:1]) == 3
    assert hits_of(nn.MSELoss(), (torch.zeros(3),), targets[1:]) == {}
    assert count_of(CrossEntropy(), (torch.zeros(3, 4),)) == 12


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
        (TokenCrossEntropy(), (2, 5), True),
        (nn.NLLLoss(), (2, 5), True),
        (CrossEntropy(), (2,), False),
        (CrossEntropy(), (2, 5, 5), False),
        (CrossEntropy(label_smoothing=0.1), (2, 5), False),
        (nn.CrossEntropyLoss(weight=torch.ones(3)), (2, 5), False),
        (nn.MSELoss(), (2, 5), False),
    ],
)
def test_perplexity_is_that_of_a_plain_cross_entropy_of_sequences(loss, shape, expected):
    found = log_loss_of(loss, 1.5, (), (torch.zeros(shape, dtype=torch.long),))
    assert found == (1.5 if expected else None)


def test_perplexity_of_a_loss_with_a_log_loss_of_its_own_is_of_that():
    class Own:
        def log_loss(self, output, target):
            return (output * target).sum()

    assert log_loss_of(Own(), 1.5, (torch.tensor([2.0]),), (torch.tensor([3.0]),)) == 6.0


def test_classes_are_the_last_dimension_of_token_scores_and_the_second_of_others():
    scores = torch.zeros(2, 5, 7)
    assert classes_of(TokenCrossEntropy(), scores) == 7
    assert classes_of(CrossEntropy(), scores) == 5


def test_only_a_loss_that_says_so_counts_tokens():
    assert counts_tokens(TokenCrossEntropy())
    assert not counts_tokens(CrossEntropy())
    assert not counts_tokens(torch.dist)
