"""What a stage keeps and draws: buffers, random numbers, modes of evaluation, activations, staleness."""

import pytest
import torch
from support.pipelines import Function, newest, sgd, stage_of, unit_gradients
from torch import nn

from pipetrain.engine.losses import CrossEntropy
from pipetrain.engine.methods.pipedream import PipeDream
from pipetrain.engine.models.chain import LayerChain
from pipetrain.engine.optim.optimizer_factory import OptimizerFactory
from pipetrain.engine.program.planned_operations import Activations
from pipetrain.engine.program.weight_reads import StageContext, WeightRead
from pipetrain.engine.stage.base import Training
from pipetrain.engine.stage.stage import Stage


def test_batch_norm_statistics_move_once_per_forward_in_order():
    torch.manual_seed(0)
    norm, plain = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    stage, batches = stage_of(norm, index=1), [torch.randn(4, 3) + t for t in range(3)]
    for t, x in enumerate(batches):
        stage.forward((t, 0), (x,), newest(stage), Activations.KEPT if t % 2 else Activations.REBOUND, store=False)
        plain(x)
    for t in range(3):
        stage.backward([(t, 0)], (torch.ones(4, 3),), newest(stage))
    assert norm.num_batches_tracked == 3
    assert torch.equal(norm.running_mean, plain.running_mean)
    assert torch.equal(norm.running_var, plain.running_var)


@pytest.mark.parametrize(("value", "name"), [(float("nan"), "1.bias"), (float("inf"), "1.bias"), (1e38, None)])
def test_stage_names_a_weight_that_is_not_finite(value, name):
    stage = stage_of(nn.Linear(2, 3), nn.Linear(3, 1))
    stage.state()["1.bias"].fill_(value)
    assert stage.not_finite() == name


class Draws(nn.Module):
    """Dropout, batch norm and a linear layer that first works in place on its input."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm, self.drop = nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(self.norm(self.linear(x.mul_(2.0).relu_())))


def test_recomputation_repeats_draws_and_keeps_buffers():
    torch.manual_seed(0)
    stage, x, g = stage_of(Draws(), index=1), torch.randn(8, 3), torch.randn(8, 3)
    plain = stage_of(Draws(), index=1)
    plain.module.load_state_dict(stage.module.state_dict())
    for t in range(2):
        (output,) = stage.forward((t, 1), (x.clone(),), WeightRead(0), Activations.DROPPED, store=True)
        buffers = {name: value.clone() for name, value in stage.module.named_buffers()}
        torch.rand(5)  # what was drawn before must not matter
        (again,) = stage.recompute((t, 1), None, WeightRead(0), Activations.KEPT)
        assert torch.equal(output, again)
        assert all(torch.equal(value, buffers[name]) for name, value in stage.module.named_buffers())
        (ours,) = stage.backward([(t, 1)], (g,), WeightRead(0))
        plain.forward((t, 1), (x.clone(),), WeightRead(0), Activations.KEPT, store=False)
        (theirs,) = plain.backward([(t, 1)], (g,), WeightRead(0))
        assert torch.equal(ours, theirs)
    assert stage.module.layers[0].norm.num_batches_tracked == 2
    pairs = zip(stage.gradients.take().values(), plain.gradients.take().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("activations", [Activations.KEPT, Activations.REBOUND])
def test_recomputation_and_its_backward_use_named_weights(activations):
    torch.manual_seed(0)
    stage, x, g = stage_of(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3), index=1), torch.randn(4, 3), torch.randn(4, 3)
    ones = unit_gradients(stage)
    stage.forward((0, 0), (x,), WeightRead(0), Activations.DROPPED, store=True)
    stage.update(0, ones, keep=True, steady=True)
    (again,) = stage.recompute((0, 0), None, WeightRead(1), activations)
    w1, b1, w2, b2 = (value.clone() for value in stage.state().values())
    hidden = torch.tanh(x @ w1.T + b1)
    torch.testing.assert_close(again, hidden @ w2.T + b2)
    if activations is Activations.REBOUND:
        stage.update(1, ones, keep=True, steady=True)
        w1, _, w2, _ = stage.state().values()
    (dx,) = stage.backward([(0, 0)], (g,), WeightRead(stage.updates))
    torch.testing.assert_close(dx, ((g @ w2) * (1 - hidden**2)) @ w1)


def test_stage_inside_segment_recomputes_from_received_input():
    torch.manual_seed(0)
    stage, other = stage_of(nn.Linear(3, 3), nn.ReLU(), index=1), torch.randn(4, 3)
    stage.forward((0, 0), (torch.randn(4, 3),), WeightRead(0), Activations.DROPPED, store=False)
    assert stage.report()["activation_bytes_peak"] == 0
    (again,) = stage.recompute((0, 0), (other,), WeightRead(0), Activations.KEPT)
    weight, bias = stage.state().values()
    torch.testing.assert_close(again, torch.relu(other @ weight.T + bias))
    stage.backward([(0, 0)], (torch.ones(4, 3),), WeightRead(0))
    (gradient, _) = stage.gradients.take().values()
    torch.testing.assert_close(gradient, (again > 0).float().T @ other)


def dropped(stage_first, microbatch, seed=0):
    """What the dropout at place 3 of a model drops, in a stage that begins at layer `stage_first`."""
    layers = [nn.Dropout(0.0), nn.Dropout(0.0), nn.Identity(), nn.Dropout(0.5)]
    chain = LayerChain(nn.Sequential(*layers), layers)
    stage = Stage(
        1, chain, (stage_first, 4), Training(OptimizerFactory(sgd, lambda _k: 0.1), CrossEntropy(), seed=seed)
    )
    torch.rand(stage_first + 1)  # what was drawn before must not matter
    return stage.forward(microbatch, (torch.ones(64),), WeightRead(0), Activations.KEPT, store=False)[0]


def test_dropout_depends_on_seed_place_and_layer_only():
    reference = dropped(0, (5, 1))
    assert 0 < (reference == 0).sum() < 64
    for first in (1, 2, 3):
        assert torch.equal(dropped(first, (5, 1)), reference)
    for other in (dropped(0, (5, 0)), dropped(0, (4, 1)), dropped(0, (1, 5)), dropped(0, (5, 1), seed=1)):
        assert not torch.equal(other, reference)


def test_dropout_layers_of_one_stage_draw_differently():
    pair = Function(lambda drop, x: (drop(x), x), nn.Dropout(0.5))
    again = Function(lambda drop, both: (both[0], drop(both[1])), nn.Dropout(0.5))
    first, second = stage_of(pair, again, index=1).forward(
        (0, 0), (torch.ones(64),), WeightRead(0), Activations.KEPT, store=False
    )
    assert not torch.equal(first, second)


def test_evaluation_uses_the_newest_weights_and_changes_no_state():
    torch.manual_seed(0)
    stage = stage_of(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5), index=1)
    x = torch.randn(8, 3)
    stage.forward((0, 0), (x,), WeightRead(0), Activations.KEPT, store=False)
    stage.update(0, unit_gradients(stage), keep=True, steady=True)
    before = {name: value.clone() for name, value in stage.state().items()}
    first, second = stage.evaluate((x,))[0], stage.evaluate((x,))[0]
    assert torch.equal(first, second)
    assert not first.requires_grad
    assert all(torch.equal(value, before[name]) for name, value in stage.state().items())
    plain = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    plain.load_state_dict(before)
    assert torch.equal(first, plain.eval()(x))


def test_evaluation_puts_layers_back_into_the_mode_they_were_in():
    norm, drop = nn.BatchNorm1d(3).eval(), nn.Dropout(0.5)
    stage = stage_of(norm, drop, index=1)
    stage.evaluate((torch.randn(4, 3),))
    assert (norm.training, drop.training) == (False, True)


# -- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("activations", [Activations.KEPT, Activations.REBOUND])
def test_activation_bytes_count_all_microbatches_in_flight(activations):
    stage = stage_of(nn.Linear(6, 5), nn.ReLU(), index=1)
    one = 4 * (3 * 6 + 3 * 5)  # the input of the linear layer and the output of relu
    for t, expected in enumerate((one, 2 * one, 3 * one)):
        stage.forward((t, 0), (torch.randn(3, 6),), WeightRead(0), activations, store=False)
        assert stage.report()["activation_bytes_peak"] == expected
    for t in range(3):
        stage.backward([(t, 0)], (torch.ones(3, 5),), WeightRead(0))
    stage.forward((3, 0), (torch.randn(3, 6),), WeightRead(0), activations, store=False)
    assert stage.report()["activation_bytes_peak"] == 3 * one


def test_messages_under_way_count_beside_activations():
    stage, one = stage_of(nn.Linear(6, 5), nn.ReLU(), index=1), 4 * (3 * 6 + 3 * 5)
    (output,) = stage.forward((0, 0), (torch.randn(3, 6),), WeightRead(0), Activations.KEPT, store=False)
    stage.message_bytes = 100
    stage.forward((1, 0), (torch.randn(3, 6),), WeightRead(0), Activations.DROPPED, store=False)
    stage.message_bytes = 7
    stage.forward((2, 0), (torch.randn(3, 6),), WeightRead(0), Activations.DROPPED, store=False)
    assert stage.report()["activation_bytes_peak"] == one + 100
    assert stage.kept_outputs(0, 0) == {output.untyped_storage().data_ptr()}
    assert stage.kept_outputs(0, None) == stage.kept_outputs(1, 0) == set()
    stage.backward([(0, 0)], (torch.ones(3, 5),), WeightRead(0))
    assert stage.kept_outputs(0, 0) == set()


def test_dropped_activations_count_stored_input_until_recomputed():
    stage = stage_of(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 5), nn.ReLU(), index=1)
    given, inside = 4 * 3 * 6, 4 * (3 * 5 + 3 * 5)  # the input of the stage, and the outputs of both relus
    for t in range(3):
        stage.forward((t, 0), (torch.randn(3, 6),), WeightRead(0), Activations.DROPPED, store=True)
        assert stage.report()["activation_bytes_peak"] == (t + 1) * given
    stage.recompute((0, 0), None, WeightRead(0), Activations.KEPT)
    assert stage.report()["activation_bytes_peak"] == 3 * given + inside  # no storage counts twice
    stage.backward([(0, 0)], (torch.ones(3, 5),), WeightRead(0))
    stage.recompute((1, 0), None, WeightRead(0), Activations.KEPT)
    assert stage.report()["activation_bytes_peak"] == 3 * given + inside


def test_microbatches_cut_from_one_tensor_count_once():
    stage, minibatch = stage_of(nn.Linear(6, 5)), torch.randn(12, 6)
    for j, part in enumerate(minibatch.split(3)):
        stage.forward((0, j), (part,), WeightRead(0), Activations.KEPT, store=False)
    assert stage.report()["activation_bytes_peak"] == 4 * 12 * 6


def test_activation_bytes_follow_the_size_of_the_microbatch():
    stage = stage_of(nn.Linear(6, 5), index=1)
    for t, rows in enumerate((2, 4)):
        stage.forward((t, 0), (torch.randn(rows, 6),), WeightRead(0), Activations.KEPT, store=False)
        stage.backward([(t, 0)], (torch.ones(rows, 5),), WeightRead(0))
    assert stage.report()["activation_bytes_peak"] == 4 * 4 * 6


def test_rates_divided_by_delay_anneal_from_the_start_of_each_phase():
    stage = stage_of(nn.Linear(2, 2))
    context = StageContext(0, 4, 1, delay=3, entry_delay=3, rate_delay=4, anneal_steps=10)
    stage.enter(PipeDream(), context, 20, fresh=True, predicts=False)
    factors = [stage.optimizer.scale(k) for k in (20, 25, 30)]
    assert factors == pytest.approx([1 / 4, 1 / 4**0.5, 1.0])
