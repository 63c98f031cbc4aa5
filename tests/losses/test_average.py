"""Averages over microbatches."""

import torch

from pipetrain.losses import percent, share, step_loss


def test_loss_of_a_minibatch_weighs_microbatches_by_what_they_count():
    losses = [torch.tensor(1.0), torch.tensor(4.0, dtype=torch.float64)]
    loss = step_loss(losses, [3, 1])
    assert (loss.mean.item(), loss.mean.dtype, loss.count) == (1.75, torch.float32, 4)


def test_microbatches_that_count_nothing_have_no_share():
    assert [share([3, 0, 1], j) for j in range(3)] == [0.75, 0, 0.25]
    assert share([0, 0], 0) == 0


def test_percent_is_of_a_hundred():
    assert percent(3, 8) == 37.5
