"""A user's layers that work in place and take gradients themselves train as in plain torch, in both executors."""

import copy

import pytest
import torch
from support import own_habits_model
from support.pipelines import batches, half_decay, pipeline, sgd
from torch.nn import functional as F


def of_plain_torch(model, inputs, targets, num_microbatches):
    optimizer = sgd(model.parameters())
    for k, (x, y) in enumerate(zip(inputs.clone().split(4), targets.split(4), strict=True)):
        optimizer.param_groups[0]["lr"] = half_decay(k)
        optimizer.zero_grad()
        for some, wanted in zip(x.chunk(num_microbatches), y.chunk(num_microbatches), strict=True):
            (F.cross_entropy(model(some.clone()), wanted) / num_microbatches).backward()
        optimizer.step()
    return model.state_dict()


@pytest.mark.parametrize(("num_microbatches", "recompute"), [(1, None), (2, None), (2, [0, 1, 2])])
def test_layers_in_place_and_gradients_in_the_forward_train_as_in_plain_torch(num_microbatches, recompute):
    torch.manual_seed(0)
    model = own_habits_model.build()
    inputs, targets = torch.randn(24, 1, 8, 8), torch.arange(24) % 4
    before, expected = inputs.clone(), of_plain_torch(copy.deepcopy(model), inputs, targets, num_microbatches)
    pipe = pipeline(model, [2, 5], "gpipe", num_microbatches, recompute=recompute)
    state = pipe.train(batches(inputs, targets, 4, num_microbatches)).state()
    torch.testing.assert_close(state, dict(expected))
    assert torch.equal(inputs, before)
    evaluated = pipe.executor.evaluate(batches(inputs, targets, 4))["loss"]
    model.load_state_dict(state)
    assert evaluated == pytest.approx(F.cross_entropy(model.eval()(inputs.clone()), targets).item(), abs=1e-5)
