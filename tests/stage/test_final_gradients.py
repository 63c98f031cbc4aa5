"""Gradients that are told of during the backward, of layers that add to a weight once and several times."""

import pytest
import torch
from support.pipelines import Function, newest, stage_of
from torch import nn
from torch.utils.checkpoint import checkpoint

from pipetrain.program.planned_operations import Activations


def told_in(stage, minibatches):
    """What was told of in each minibatch, by weight, beside the sums after it."""
    told = [{} for _ in range(minibatches)]
    for t, each in enumerate(told):
        stage.on_final_gradient = lambda name, gradient, each=each: each.update({name: gradient.clone()})
        stage.forward((t, 0), (torch.randn(2, 3),), newest(stage), Activations.KEPT, store=False)
        stage.backward([(t, 0)], (torch.ones(2, 3),), newest(stage), Activations.KEPT)
        sums = stage.gradients.take()
        assert all(torch.equal(sums[name], gradient) for name, gradient in each.items())
    return [sorted(each) for each in told]


def checkpointed_twice(linear, x):
    return checkpoint(linear, checkpoint(linear, x, use_reentrant=True), use_reentrant=True)


def test_whole_gradients_are_told_of_from_the_second_minibatch_on():
    weights = ["layers.0.bias", "layers.0.weight"]
    assert told_in(stage_of(nn.Linear(3, 3), index=1), 3) == [[], weights, weights]


def test_nothing_is_told_of_where_a_layer_checkpoints_itself_in_several_parts():
    assert told_in(stage_of(Function(checkpointed_twice, nn.Linear(3, 3)), index=1), 3) == [[], [], []]


def test_weight_that_a_later_minibatch_adds_to_twice_is_refused_by_name():
    uses = iter([lambda linear, x: linear(x), checkpointed_twice])
    stage = stage_of(Function(lambda linear, x: next(uses)(linear, x), nn.Linear(3, 3)), index=1)
    with pytest.raises(RuntimeError, match=r"0\.parts\.0\.\w+: .*use_reentrant=False"):
        told_in(stage, 2)
