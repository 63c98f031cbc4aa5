"""The module of a stage computes with the weights that it is lent, and puts its own back."""

import random

import numpy as np
import pytest
import torch
from support.pipelines import newest, stage_of, unit_gradients
from torch import nn

from pipetrain.engine.program.planned_operations import Activations
from pipetrain.engine.program.weight_reads import WeightRead
from pipetrain.engine.stage.module import StageModule


def test_failed_forward_restores_module_parameters():
    stage = stage_of(nn.Linear(3, 3), index=1)
    own = stage.module.layers[0].weight
    with pytest.raises(RuntimeError):
        stage.forward((0, 0), (torch.ones(2, 5),), newest(stage), Activations.REBOUND, store=False)
    assert stage.module.layers[0].weight is own


@pytest.mark.parametrize("keep", [False, True])
def test_module_has_newest_weights_between_operations(keep):
    stage, x = stage_of(nn.Linear(3, 3, bias=False), index=1), torch.ones(2, 3)
    stage.forward((0, 0), (x,), WeightRead(0), Activations.KEPT, store=False)  # its leaves stay in the module
    stage.update(9, unit_gradients(stage), keep=keep, steady=True)
    (weight,) = stage.optimizer.parameters.values()
    torch.testing.assert_close(stage.evaluate((x,))[0], (x @ weight.T).detach())
    (saved,) = stage.state().values()
    assert saved.data_ptr() == weight.data_ptr()


class Skipping(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        return self.linear(x) * random.random() + np.random.rand()


def test_python_and_numpy_draws_depend_on_place_only():
    stage, again, x = stage_of(Skipping(), index=1), stage_of(Skipping(), index=1), torch.ones(2, 3)
    again.module.load_state_dict(stage.module.state_dict())
    before = random.getstate(), np.random.get_state()[1].tolist()
    outputs = []
    for each in (stage, again):
        for microbatch in ((0, 0), (1, 0)):
            random.seed(len(outputs))
            outputs += each.forward(microbatch, (x,), newest(each), Activations.DROPPED, store=True)
            random.setstate(before[0])
        recomputed = each.recompute((0, 0), None, newest(each), Activations.KEPT)
        assert torch.equal(*recomputed, outputs[-2])
    assert torch.equal(outputs[0], outputs[2])
    assert torch.equal(outputs[1], outputs[3])
    assert not torch.equal(outputs[0], outputs[1])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


class DrawsLater(nn.Module):
    def __init__(self, draw):
        super().__init__()
        self.linear, self.draw, self.calls = nn.Linear(3, 3), draw, 0

    def forward(self, x):
        self.calls += 1
        return self.linear(x) * (self.draw() if self.calls > 2 else 1.0)


@pytest.mark.parametrize("draw", [random.random, np.random.rand])
def test_layer_drawing_after_some_forwards_draws_by_place(draw):
    found = []
    for seed in (1, 2):
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(0)
        stage = stage_of(DrawsLater(draw), index=1)
        for minibatch in range(3):
            outputs = stage.forward((minibatch, 0), (torch.ones(2, 3),), newest(stage), Activations.KEPT, store=False)
        found.append(outputs[0].detach())
    torch.testing.assert_close(*found, rtol=0, atol=0)


def wrapped(layer):
    """A layer of torch whose forward draws, as where a library wraps it."""
    forward = layer.forward
    layer.forward = lambda x: forward(x) * torch.rand(())
    return layer


def hooked(layer):
    layer.register_forward_hook(lambda _layer, _inputs, output: output * torch.rand(()))
    return layer


@pytest.mark.parametrize("change", [wrapped, hooked])
def test_draws_that_a_layer_of_torch_was_given_depend_on_place_only(change):
    module = StageModule([nn.ReLU(), change(nn.Linear(3, 3)), nn.ReLU()], 0, seed=0)
    first, second, again = (module(torch.ones(2, 3), microbatch=place)[0] for place in ((0, 0), (1, 0), (0, 0)))
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
