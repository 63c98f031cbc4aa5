"""What layers do that no stage can: found by trying them before a run."""

import copy

import pytest
import torch
from support.pipelines import Function
from support.refusals import assert_refused
from torch import nn

from pipetrain.engine.arithmetic import ComputeOptions
from pipetrain.graph.conversion import chain_of
from pipetrain.graph.layer_trials import check_forwards, check_in_place


class Borrowing(nn.Module):
    """Computes with the weight of another layer, which it does not register."""

    def __init__(self, lender: nn.Module) -> None:
        super().__init__()
        self.lenders = [lender]

    def forward(self, x):
        return x @ self.lenders[0].weight


def test_complex_tensor_before_a_cut_is_refused_if_it_needs_a_gradient():
    layers = [Function(torch.fft.rfft), nn.Linear(4, 6), Function(torch.fft.rfft), Function(torch.abs), nn.Linear(4, 2)]
    chain, inputs = chain_of(nn.Sequential(*layers[1:])), (torch.randn(6, 4),)
    for cuts in ([], [1], [3], [1, 3]):
        check_forwards(chain, inputs, cuts, ComputeOptions())
    assert_refused("layer 1:Function, .* complex tensor", check_forwards, chain, inputs, [2], ComputeOptions())
    transformed = chain_of(nn.Sequential(layers[0], Function(torch.abs), nn.Linear(3, 2)))
    check_forwards(transformed, inputs, [1], ComputeOptions())
    assert transformed.layers[0].training


class Normed(nn.Linear):
    """Keeps its weight at a norm of 1, as max-norm layers do."""

    def forward(self, inputs):
        self.weight.data = self.weight.data / self.weight.data.norm()
        return super().forward(inputs)


class NormedInTraining(Normed):
    def forward(self, inputs):
        return super().forward(inputs) if self.training else nn.Linear.forward(self, inputs)


class Late(nn.Module):
    """Makes a buffer that checkpoints have at its first forward."""

    def forward(self, inputs):
        self.register_buffer("seen", inputs.mean(0).detach())
        return inputs


LENDER = nn.Linear(4, 4)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (Borrowing(LENDER), r"1:Borrowing uses a parameter of shape \(4, 4\)"),
        (Borrowing(nn.Linear(4, 4)), r"1:Borrowing uses a parameter of shape \(4, 4\)"),
        (Normed(4, 4), "assigns to weight.data"),
        (NormedInTraining(4, 4), "assigns to weight.data"),
        (Late(), "makes the buffer seen"),
    ],
)
def test_forward_that_uses_or_replaces_what_no_stage_holds_is_refused(layer, message):
    chain = chain_of(nn.Sequential(LENDER, layer))
    assert_refused(message, check_forwards, chain, (torch.randn(3, 4),), [1], ComputeOptions())


def test_constant_complex_tensor_may_cross_a_cut():
    class First(nn.Linear):
        def forward(self, inputs):
            return super().forward(inputs), torch.ones(1, dtype=torch.complex64)

    class Passing(nn.Linear):
        def forward(self, pair):
            return super().forward(pair[0]), pair[1]

    class Last(nn.Linear):
        def forward(self, pair):
            return super().forward(pair[0]) * pair[1].real

    chain = chain_of(nn.Sequential(First(4, 4), Passing(4, 4), Last(4, 4)))
    check_forwards(chain, (torch.randn(3, 4),), [1, 2], ComputeOptions())


def test_scripted_layer_is_left_alone():
    chain = chain_of(nn.Sequential(torch.jit.script(nn.Linear(4, 4)), nn.Linear(4, 2)))
    check_forwards(chain, (torch.randn(3, 4),), [1], ComputeOptions())


class Grouped(nn.Module):
    """Needs more samples in training than in evaluation, and keeps what it has computed."""

    def forward(self, inputs):
        self.last = inputs * 2
        return self.last.view(8, -1).view_as(inputs) if self.training else self.last


def test_layer_that_needs_more_samples_in_training_passes():
    chain = chain_of(nn.Sequential(nn.Linear(3, 3), Grouped()))
    check_forwards(chain, (torch.randn(2, 3),), [1], ComputeOptions())
    copy.deepcopy(chain)


class Growing(nn.Linear):
    """Multiplies its output with a buffer that it changes in place."""

    def __init__(self, *, cloned):
        super().__init__(4, 4)
        self.register_buffer("gain", torch.ones(()))
        self.cloned = cloned

    def forward(self, x):
        self.gain.add_(0.01)
        return super().forward(x) * (self.gain.clone() if self.cloned else self.gain)


def test_forward_that_overwrites_what_an_earlier_backward_needs_is_refused():
    inputs = (torch.randn(6, 4),)
    chain = chain_of(nn.Sequential(nn.Linear(4, 4), Growing(cloned=False)))
    check_forwards(chain, inputs, [1], ComputeOptions(), overlap=False)
    assert_refused(r"layer 1:Growing changes .* a clone\(\)", check_forwards, chain, inputs, [1], ComputeOptions())
    check_forwards(chain_of(nn.Sequential(nn.Linear(4, 4), Growing(cloned=True))), inputs, [1], ComputeOptions())


@pytest.mark.parametrize("overlap", [False, True])
def test_cut_without_a_gradient_is_named(overlap):
    inputs = (torch.randn(6, 4),)
    chain = chain_of(nn.Sequential(nn.Linear(4, 4), Function(torch.detach), nn.Linear(4, 2)))
    (note,), _ = check_forwards(chain, inputs, [1], ComputeOptions(), overlap=overlap)
    assert note.startswith("warning: layer 1:Function, the first of its stage, passes no gradient back")
    assert check_forwards(chain, inputs, [2], ComputeOptions())[0] == []


class Fork(nn.Module):
    def __init__(self, copies):
        super().__init__()
        self.linear, self.copies = nn.Linear(4, 4), copies

    def forward(self, x):
        x = self.linear(x)
        return x, x.clone() if self.copies else x


class Join(nn.Module):
    def forward(self, pair):
        return torch.relu_(pair[0]) + pair[1]


def check(*layers, cuts):
    chain, inputs = chain_of(nn.Sequential(*layers)), (torch.randn(6, 4),)
    chain.train()
    _, changing = check_forwards(chain, inputs, cuts, ComputeOptions())
    check_in_place(chain, inputs, cuts, changing)
    return changing


@pytest.mark.parametrize(("copies", "cuts"), [(False, []), (False, [2]), (True, [1])])
def test_layer_that_writes_over_what_nobody_else_gets_is_accepted(copies, cuts):
    assert check(Fork(copies), Join(), nn.Linear(4, 2), cuts=cuts) == [1, 1]


def test_layer_that_writes_over_what_is_still_needed_is_refused_by_name():
    joined = [Fork(copies=False), Join(), nn.Linear(4, 2)]
    assert_refused("layer 1:Join changes its input in place, which shares", check, *joined, cuts=[1])
    layers = [nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4), nn.Sigmoid(), nn.ELU(inplace=True)]
    assert_refused("layer 4:ELU changes its input in place", check, *layers, nn.Linear(4, 2), cuts=[2])
