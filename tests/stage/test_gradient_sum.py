"""Gradients of microbatches add up in memory that nothing else shares."""

import torch
from support.pipelines import stage_of, step
from torch import nn


def test_gradients_of_microbatches_add_up_and_are_handed_out_once():
    torch.manual_seed(0)
    stage = stage_of(nn.Linear(3, 2), index=1)
    parts = []
    for j in range(3):
        step(stage, (torch.randn(2, 3),), (torch.randn(2, 2),), (0, j))
        parts.append({name: value.clone() for name, value in stage.gradients.tensors.items()})
    total = stage.gradients.take()
    assert stage.gradients.take() == {}
    assert all(torch.equal(total[name], parts[-1][name]) for name in total)
    assert not any(torch.equal(parts[0][name], total[name]) for name in total)


class TwoBiases(nn.Module):
    """x + a + b: the gradients of x, a and b are one tensor, and the incoming one."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(3))

    def forward(self, x):
        return x + self.a + self.b


def test_gradients_that_alias_each_other_are_never_written_in_place():
    stage = stage_of(TwoBiases(), index=1)
    incoming = [torch.full((3,), float(j + 1)) for j in range(3)]
    returned = [step(stage, (torch.zeros(3),), (g,), (0, j))[1][0] for j, g in enumerate(incoming)]
    gradients = stage.gradients.take()
    assert [g.tolist() for g in incoming] == [[j + 1.0] * 3 for j in range(3)]
    assert [g.tolist() for g in returned] == [[j + 1.0] * 3 for j in range(3)]
    assert [g.tolist() for g in gradients.values()] == [[6.0] * 3] * 2


def storages(tensors):
    return [tensor.untyped_storage().data_ptr() for tensor in tensors]


def test_optimizer_that_writes_into_a_gradient_changes_no_other_tensor():
    stage, g = stage_of(TwoBiases(), index=1), torch.ones(3)
    _, (dx,) = step(stage, (torch.zeros(3),), (g,))
    gradients = list(stage.gradients.take().values())
    assert len(set(storages([*gradients, g]))) == 3
    assert not set(storages(gradients)) & set(storages([dx]))


class Joined(nn.Module):
    """cat(a, b) + c: the gradients of a and b are views of c's, b's at an offset."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (
            nn.Parameter(torch.zeros(2)),
            nn.Parameter(torch.zeros(2)),
            nn.Parameter(torch.zeros(4)),
        )

    def forward(self, x):
        return x + torch.cat([self.a, self.b]) + self.c


def test_gradients_that_are_views_into_each_other_are_separated():
    stage, g = stage_of(Joined(), index=1), torch.ones(4)
    _, (dx,) = step(stage, (torch.zeros(4),), (g,))
    gradients = list(stage.gradients.take().values())
    assert len(set(storages(gradients))) == 3
    assert not set(storages(gradients)) & set(storages([dx, g]))


class _OwnGradient(torch.autograd.Function):
    """x + w, whose gradient for w is a tensor that somebody else owns."""

    @staticmethod
    def forward(ctx, x, w, direction):
        ctx.direction = direction
        return x + w

    @staticmethod
    def backward(ctx, g):
        return g, ctx.direction, None


class Directed(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(3))
        self.register_buffer("direction", torch.ones(3))

    def forward(self, x):
        return _OwnGradient.apply(x, self.w, self.direction)


def test_gradient_that_a_layer_owns_is_not_added_to_in_place():
    stage = stage_of(Directed(), index=1)
    for j in range(3):
        step(stage, (torch.zeros(3),), (torch.ones(3),), (0, j))
    assert stage.module.layers[0].direction.tolist() == [1.0] * 3
    assert stage.gradients.take()["layers.0.w"].tolist() == [3.0] * 3
