"""The cross-entropy of tokens, without those that pad."""

import pytest
import torch
from torch import nn

from pipetrain.errors import ConfigError
from pipetrain.executors.evaluation import PartScore, metrics_of
from pipetrain.losses import TokenCrossEntropy

LOGITS = torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(0))
TARGETS = torch.tensor([[5, 4, 3, 0], [1, 0, 0, 0], [2, 2, 2, 2]])


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_token_cross_entropy_is_torchs_mean_over_the_tokens_that_do_not_pad(smoothing):
    loss = TokenCrossEntropy(smoothing, ignore_index=0)
    expected = nn.CrossEntropyLoss(ignore_index=0, label_smoothing=smoothing)(LOGITS.transpose(1, 2), TARGETS)
    assert loss(LOGITS, TARGETS).item() == pytest.approx(expected.item())
    assert loss.count(TARGETS) == 8


def test_every_token_counts_where_none_pads():
    loss = TokenCrossEntropy()
    expected = nn.CrossEntropyLoss()(LOGITS.transpose(1, 2), TARGETS)
    assert loss(LOGITS, TARGETS).item() == pytest.approx(expected.item())
    assert loss.count(TARGETS) == 12
    assert loss.metrics(LOGITS, TARGETS)["top1"] == (LOGITS.argmax(-1) == TARGETS).sum()


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


def test_perplexity_over_parts_of_any_length_is_that_of_all_tokens_without_smoothing():
    loss = TokenCrossEntropy(0.3, ignore_index=0)
    parts = [PartScore.of(loss, (LOGITS[rows],), (TARGETS[rows],)) for rows in (slice(1), slice(1, None))]
    plain = nn.CrossEntropyLoss(ignore_index=0)(LOGITS.transpose(1, 2), TARGETS)
    found = metrics_of(parts)
    assert found["perplexity"] == pytest.approx(plain.exp().item())
    assert found["loss"] == pytest.approx(TokenCrossEntropy(0.3, ignore_index=0)(LOGITS, TARGETS).item())
    assert found.keys() == {"loss", "perplexity", "top1"}


def test_smoothing_out_of_range_is_refused():
    with pytest.raises(ConfigError, match="label_smoothing"):
        TokenCrossEntropy(1.5)


def test_loss_leaves_the_count_of_tokens_where_it_is(monkeypatch):
    loss = TokenCrossEntropy(ignore_index=0)
    expected = loss(LOGITS, TARGETS)
    monkeypatch.setattr(torch.Tensor, "__int__", lambda _: pytest.fail("the host of a device would wait"))
    assert torch.equal(loss(LOGITS, TARGETS), expected)
