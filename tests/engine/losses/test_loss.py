"""Losses of any kind."""

import pytest
import torch
from torch import nn

from pipetrain.engine.errors import RunError
from pipetrain.engine.losses import (
    CrossEntropy,
    TokenCrossEntropy,
    correct_counts,
    count_of,
    counts_of,
    counts_tokens,
    log_loss_of,
    microbatch_weight,
    number_of_classes,
    on_device,
    step_loss,
)


def test_loss_with_buffers_moves_to_device_and_function_stays():
    weighted = nn.CrossEntropyLoss(weight=torch.ones(3))
    assert on_device(weighted, torch.device("meta")).weight.device.type == "meta"
    assert on_device(torch.dist, torch.device("meta")) is torch.dist


def test_minibatch_loss_weighs_microbatches_by_count():
    losses = [torch.tensor(1.0), torch.tensor(4.0, dtype=torch.float64)]
    loss = step_loss(losses, [3, 1])
    assert (loss.mean.item(), loss.mean.dtype, loss.count) == (1.75, torch.float32, 4)


def test_microbatches_that_count_nothing_have_no_share():
    assert [microbatch_weight([3, 0, 1], j) for j in range(3)] == [0.75, 0, 0.25]
    assert microbatch_weight([0, 0], 0) == 0
    assert microbatch_weight([0.1, 0.3], 1) == pytest.approx(0.75)


def test_custom_loss_counts_samples_and_needs_no_metrics():
    targets = (torch.zeros(3, 4), torch.zeros(3))
    assert count_of(nn.MSELoss(), targets[:1]) == 3
    assert correct_counts(nn.MSELoss(), (torch.zeros(3),), targets[1:]) == {}
    assert count_of(CrossEntropy(), (torch.zeros(3, 4, dtype=torch.long),)) == 12


@pytest.mark.parametrize("loss", [nn.NLLLoss(ignore_index=0), nn.CrossEntropyLoss(ignore_index=0)])
def test_torch_losses_skip_ignored_classes(loss):
    scores = torch.tensor([[[3.0, 1.0, 2.0], [2.0, 3.0, 1.0]], [[1.0, 3.0, 2.0], [1.0, 2.0, 3.0]]]).transpose(1, 2)
    targets = torch.tensor([[0, 1], [2, 2]])
    assert count_of(loss, (targets,)) == 3
    assert correct_counts(loss, (scores,), (targets,)) == {"top1": 2}
    assert count_of(loss, (torch.zeros_like(targets),)) == 0


@pytest.mark.parametrize("shape", [(12,), (3, 4)])
@pytest.mark.parametrize("options", [{}, {"ignore_index": 1}, {"label_smoothing": 0.2, "ignore_index": 1}])
def test_torch_losses_count_class_weights_and_hits_of_all_targets(options, shape):
    torch.manual_seed(0)
    scores, targets = torch.randn(shape[0], 3, *shape[1:]), torch.randint(3, shape)
    loss = nn.CrossEntropyLoss(weight=torch.tensor([0.1, 1.0, 4.0]), **options)
    parts = [(scores[i : i + 1], targets[i : i + 1]) for i in range(len(targets))]
    counts = [count_of(loss, (target,)) for _, target in parts]
    each = [loss(*part).item() if count else 0.0 for part, count in zip(parts, counts, strict=True)]
    mean = sum(count * value for count, value in zip(counts, each, strict=True)) / sum(counts)
    assert mean == pytest.approx(loss(scores, targets).item(), rel=1e-6)
    assert counts_of(loss, (targets,)) == (pytest.approx(sum(counts)), targets.ne(loss.ignore_index).sum())


def test_loss_derived_from_a_weighted_one_counts_targets():
    class Focal(nn.CrossEntropyLoss):
        def forward(self, scores, targets):
            return nn.functional.cross_entropy(scores, targets, self.weight, reduction="none").square().mean()

    assert count_of(Focal(weight=torch.tensor([0.1, 4.0])), (torch.tensor([0, 1, 1]),)) == 3


def test_count_of_a_loss_may_be_a_sum_of_weights_but_not_of_tokens():
    class Own:
        def count(self, targets):
            return targets.sum()

    assert count_of(Own(), (torch.tensor([0.5, 0.25]),)) == 0.75
    Own.unit = "tokens"
    assert isinstance(count_of(Own(), (torch.tensor([1.5, 0.5]),)), int)
    with pytest.raises(RunError, match=r"`count` of the loss returned 0.75"):
        count_of(Own(), (torch.tensor([0.5, 0.25]),))


def test_torch_losses_without_classes_have_no_hits():
    shares = torch.tensor([[0.5, 0.5]])
    assert correct_counts(nn.CrossEntropyLoss(), (shares,), (shares,)) == {}
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
def test_perplexity_is_that_of_plain_sequence_cross_entropy(loss, shape, expected):
    found = log_loss_of(loss, 1.5, (), (torch.zeros(shape, dtype=torch.long),))
    assert found == (1.5 if expected else None)


def test_perplexity_uses_log_loss_of_the_loss():
    class Own:
        def log_loss(self, output, target):
            return (output * target).sum()

    assert log_loss_of(Own(), 1.5, (torch.tensor([2.0]),), (torch.tensor([3.0]),)) == 6.0


def test_classes_are_last_for_token_scores_and_else_second():
    scores = torch.zeros(2, 5, 7)
    assert number_of_classes(TokenCrossEntropy(), scores) == 7
    assert number_of_classes(CrossEntropy(), scores) == 5


def test_only_a_loss_that_says_so_counts_tokens():
    assert counts_tokens(TokenCrossEntropy())
    assert not counts_tokens(CrossEntropy())
    assert not counts_tokens(torch.dist)
