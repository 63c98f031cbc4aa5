"""What a stage keeps and draws: buffers, random numbers, modes of evaluation, activations, staleness."""

import pytest
import torch
from harness import CPU, Function, newest, optimizers, sgd, stage_of
from torch import nn

from pipetrain.models.chain import LayerChain
from pipetrain.schedules import Read
from pipetrain.stage import Stage


def test_batch_norm_statistics_move_once_per_forward_in_order():
    torch.manual_seed(0)
    norm, plain = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    stage, batches = stage_of(norm, index=1), [torch.randn(4, 3) + t for t in range(3)]
    for t, x in enumerate(batches):
        stage.forward((t, 0), (x,), newest(stage), changes=t % 2 == 0)
        plain(x)
    for t in range(3):
        stage.backward((t, 0), (torch.ones(4, 3),), newest(stage), changes=t % 2 == 0)
    assert norm.num_batches_tracked == 3
    assert torch.equal(norm.running_mean, plain.running_mean)
    assert torch.equal(norm.running_var, plain.running_var)


def dropped(stage_first, microbatch, seed=0):
    """What the dropout at place 3 of a model drops, in a stage that begins at layer `stage_first`."""
    layers = [nn.Dropout(0.0), nn.Dropout(0.0), nn.Identity(), nn.Dropout(0.5)]
    chain = LayerChain(nn.Sequential(*layers), layers)
    stage = Stage(1, chain, stage_first, 4, optimizers(sgd, lambda k: 0.1), None, seed, CPU)
    torch.rand(stage_first + 1)  # what was drawn before must not matter
    return stage.forward(microbatch, (torch.ones(64),), Read(0), False)[0]


def test_dropout_depends_on_seed_minibatch_microbatch_and_layer_and_not_on_the_partition():
    reference = dropped(0, (5, 1))
    assert 0 < (reference == 0).sum() < 64
    for first in (1, 2, 3):
        assert torch.equal(dropped(first, (5, 1)), reference)
    for other in (dropped(0, (5, 0)), dropped(0, (4, 1)), dropped(0, (1, 5)), dropped(0, (5, 1), seed=1)):
        assert not torch.equal(other, reference)


def test_two_dropouts_of_one_stage_draw_differently():
    pair = Function(lambda drop, x: (drop(x), x), nn.Dropout(0.5))
    again = Function(lambda drop, both: (both[0], drop(both[1])), nn.Dropout(0.5))
    first, second = stage_of(pair, again, index=1).forward((0, 0), (torch.ones(64),), Read(0), False)
    assert not torch.equal(first, second)


def test_evaluation_uses_the_newest_weights_and_changes_no_state():
    torch.manual_seed(0)
    stage = stage_of(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5), index=1)
    x = torch.randn(8, 3)
    stage.forward((0, 0), (x,), Read(0), False)
    stage.update(0, {name: torch.ones_like(p) for name, p in stage.optimizer.parameters.items()}, True, True)
    before = {name: value.clone() for name, value in stage.state().items()}
    first, second = stage.evaluate((x,))[0], stage.evaluate((x,))[0]
    assert torch.equal(first, second)
    assert not first.requires_grad
    assert all(torch.equal(value, before[name]) for name, value in stage.state().items())
    plain = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    plain.load_state_dict(before)
    assert torch.equal(first, plain.eval()(x))


def test_evaluation_leaves_layers_in_the_mode_that_they_were_in():
    norm, drop = nn.BatchNorm1d(3).eval(), nn.Dropout(0.5)
    stage = stage_of(norm, drop, index=1)
    stage.evaluate((torch.randn(4, 3),))
    assert (norm.training, drop.training) == (False, True)


# -- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [False, True])
def test_activation_bytes_are_those_of_all_microbatches_in_flight(changes):
    stage = stage_of(nn.Linear(6, 5), nn.ReLU(), index=1)
    one = 4 * (3 * 6 + 3 * 5)  # the input of the linear layer and the output of relu
    for t, expected in enumerate((one, 2 * one, 3 * one)):
        stage.forward((t, 0), (torch.randn(3, 6),), Read(0), changes)
        assert stage.report()["activation_bytes_peak"] == expected
    for t in range(3):
        stage.backward((t, 0), (torch.ones(3, 5),), Read(0), changes)
    stage.forward((3, 0), (torch.randn(3, 6),), Read(0), changes)
    assert stage.report()["activation_bytes_peak"] == 3 * one


def test_activation_bytes_follow_the_size_of_the_microbatch():
    stage = stage_of(nn.Linear(6, 5), index=1)
    for t, rows in enumerate((2, 4)):
        stage.forward((t, 0), (torch.randn(rows, 6),), Read(0), False)
        stage.backward((t, 0), (torch.ones(rows, 5),), Read(0), False)
    assert stage.report()["activation_bytes_peak"] == 4 * 4 * 6


def test_a_version_written_over_before_its_backward_is_an_error():
    stage = stage_of(nn.Linear(2, 2), index=1)
    stage.forward((0, 0), (torch.ones(1, 2),), Read(0), False)
    stage.update(9, {name: torch.ones_like(p) for name, p in stage.optimizer.parameters.items()}, False, True)
    with pytest.raises(RuntimeError, match="overwritten"):
        stage.backward((0, 0), (torch.ones(1, 2),), Read(0), False)


def test_staleness_is_measured_in_the_steady_state_alone():
    stage = stage_of(nn.Linear(2, 2), index=1)
    ones = {name: torch.ones_like(p) for name, p in stage.optimizer.parameters.items()}
    for t in range(4):
        stage.forward((t, 0), (torch.ones(1, 2),), newest(stage), True)
    for t in range(4):
        stage.backward((t, 0), (torch.ones(1, 2),), newest(stage), True)
        stage.update(t, ones, False, steady=t >= 2)
    assert stage.report()["forward_staleness"] == [2, 3]
    assert stage.report()["backward_staleness"] == [0]
