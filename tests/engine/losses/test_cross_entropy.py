"""The cross-entropy of class scores, and what it hits."""

import pytest
import torch
from support.refusals import assert_refused
from torch import nn

from pipetrain.engine.executors.evaluation import PartScore, metrics_of
from pipetrain.engine.executors.feed import Targets
from pipetrain.engine.losses import CrossEntropy, TokenCrossEntropy


def test_cross_entropy_counts_top_1_and_top_5_hits():
    scores = torch.tensor([[6.0, 5, 4, 3, 2, 1, 0], [6.0, 5, 4, 3, 2, 1, 0], [6.0, 5, 4, 3, 2, 1, 0]])
    targets = torch.tensor([0, 4, 6])
    hits = {name: value.item() for name, value in CrossEntropy().metrics(scores, targets).items()}
    assert hits == {"top1": 1, "top5": 2}
    assert CrossEntropy().metrics(scores[:, :5], targets % 5).keys() == {"top1"}


@pytest.mark.parametrize("shape", [(5, 3), (5, 7), (2, 3, 4)])
def test_probabilities_as_targets_count_as_their_highest_classes(shape):
    torch.manual_seed(0)
    scores, targets = torch.randn(shape), torch.randint(shape[1], (shape[0], *shape[2:]))
    soft = nn.functional.one_hot(targets, shape[1]).movedim(-1, 1) * 0.8 + 0.2 / shape[1]
    loss = CrossEntropy()
    assert loss.count(soft) == loss.count(targets) == targets.numel()
    assert loss.metrics(scores, soft) == loss.metrics(scores, targets)
    assert loss(scores, soft) == nn.functional.cross_entropy(scores, soft)


def test_losses_of_auxiliary_heads_are_added_with_their_weight():
    torch.manual_seed(0)
    scores, heads, targets = torch.randn(4, 3), torch.randn(2, 4, 3), torch.tensor([0, 2, 1, 1])
    loss = CrossEntropy(label_smoothing=0.1, auxiliary=0.25)
    own, first, second = (loss(each, targets) for each in (scores, *heads))
    assert loss(scores, *heads, targets).item() == pytest.approx((own + 0.25 * (first + second)).item())
    assert_refused(r"loss.auxiliary=-1: must be a number of at least 0", CrossEntropy, auxiliary=-1)


def test_cross_entropy_of_sequences_counts_every_position():
    torch.manual_seed(0)
    scores, targets = torch.randn(2, 7, 5), torch.randint(0, 7, (2, 5))
    loss = CrossEntropy()
    assert loss.count(targets) == 10
    assert loss(scores, targets).item() == pytest.approx(
        nn.functional.cross_entropy(scores.transpose(1, 2).reshape(10, 7), targets.reshape(10)).item()
    )
    assert loss.metrics(scores, targets)["top1"] == (scores.argmax(1) == targets).sum()


LOGITS = torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(0))
TARGETS = torch.tensor([[5, 4, 3, 0], [1, 0, 0, 0], [2, 2, 2, 2]])


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_token_cross_entropy_is_torch_mean_without_padding(smoothing):
    loss = TokenCrossEntropy(smoothing, ignore_index=0)
    expected = nn.CrossEntropyLoss(ignore_index=0, label_smoothing=smoothing)(LOGITS.transpose(1, 2), TARGETS)
    assert loss(LOGITS, TARGETS).item() == pytest.approx(expected.item())
    assert loss.count(TARGETS) == 8


def test_padding_alone_has_no_loss_and_no_gradient():
    loss, logits = TokenCrossEntropy(ignore_index=0), LOGITS.clone().requires_grad_()
    value = loss(logits, torch.zeros_like(TARGETS))
    value.backward()
    assert value.item() == 0
    assert not logits.grad.any()


def test_padding_is_never_a_hit():
    logits = torch.zeros(1, 2, 3)
    logits[..., 0] = 1
    assert TokenCrossEntropy(ignore_index=0).metrics(logits, torch.tensor([[0, 1]]))["top1"] == 0


def test_perplexity_over_parts_is_unsmoothed_over_all_tokens():
    loss = TokenCrossEntropy(0.3, ignore_index=0)
    parts = [
        PartScore.of(loss, (LOGITS[rows],), Targets((TARGETS[rows],), (TARGETS[rows],)))
        for rows in (slice(1), slice(1, None))
    ]
    plain = nn.CrossEntropyLoss(ignore_index=0)(LOGITS.transpose(1, 2), TARGETS)
    found = metrics_of(parts)
    assert found["perplexity"] == pytest.approx(plain.exp().item())
    assert found["loss"] == pytest.approx(TokenCrossEntropy(0.3, ignore_index=0)(LOGITS, TARGETS).item())
    assert found.keys() == {"loss", "perplexity", "top1"}


def test_loss_leaves_the_count_of_tokens_where_it_is(monkeypatch):
    loss = TokenCrossEntropy(ignore_index=0)
    expected = loss(LOGITS, TARGETS)
    monkeypatch.setattr(torch.Tensor, "__int__", lambda _: pytest.fail("the host of a device would wait"))
    assert torch.equal(loss(LOGITS, TARGETS), expected)
