"""Pipelines whose schedule splits the backward: the bits of one whose backwards are whole."""

import pytest
import torch
from support import tied_model
from support.methods import METHODS, MethodCase
from support.pipelines import batches, pipeline
from support.split_schedules import splitting
from torch import nn

from pipetrain.engine.arithmetic import ComputeOptions
from pipetrain.engine.errors import InvariantError
from pipetrain.engine.executors.pipeline_rules import PipelineRules
from pipetrain.engine.methods.synchronous import Synchronous
from pipetrain.engine.program.planned_operations import Activations
from pipetrain.engine.program.weight_reads import WeightRead
from pipetrain.engine.schedules.one_f_one_b import OneFOneB, OneFOneBFlush
from pipetrain.engine.schedules.operation import backward, weight_gradient

INPUTS = torch.randn(48, 4, generator=torch.Generator().manual_seed(1))


def layers():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(inplace=True), nn.Linear(8, 8), nn.Dropout(0.2), nn.Linear(8, 4)
    )


def tied_layers():
    torch.manual_seed(0)
    return tied_model.build(1, 4)


def trained(case, model=None, cuts=(2, 4), inputs=INPUTS, **options):
    """Losses, weights and reports of two epochs of six minibatches, each of four microbatches."""
    data = batches(inputs, torch.arange(48) % 4, 8, 4)
    pipe = pipeline(model or layers(), cuts, case, 4, **options).train(data, epochs=2)
    return pipe.losses, pipe.state(), pipe.reports("forward_staleness"), pipe.reports("weight_versions_max")


def assert_equal_runs(method, schedule, make=layers, cuts=(2, 4), **options):
    runs = [trained(MethodCase(method, each), make(), cuts, **options) for each in (schedule, splitting(schedule))]
    (losses, state, *reports), (split_losses, split_state, *split_reports) = runs
    assert losses == split_losses
    assert all(torch.equal(state[name], split_state[name]) for name in state)
    assert reports == split_reports


@pytest.mark.parametrize("name", ["gpipe", "pipedream_flush", "pipedream", "pipeoptim", "pipedream_2bw", "spectrain"])
@pytest.mark.parametrize("recompute", [None, [0, 1, 2]])
def test_split_schedule_trains_the_same_weights(name, recompute):
    assert_equal_runs(*METHODS[name], recompute=recompute)


class Squared(nn.Linear):
    """A layer that splits, and whose gradients of weights depend on the weights."""

    splits_backward = True

    def forward(self, x):
        return nn.functional.linear(x, self.weight.square(), self.bias)


def layers_that_read_weights():
    torch.manual_seed(0)
    by_hook = nn.utils.weight_norm(nn.Linear(8, 8))
    return nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(4, 8)), Squared(8, 8), nn.Tanh(), by_hook, nn.Linear(8, 4)
    )


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm`")
@pytest.mark.parametrize("name", ["spectrain", "pipemare_t2"])
def test_gradients_that_depend_on_the_weights_find_those_of_b(name):
    assert_equal_runs(*METHODS[name], layers_that_read_weights)


@pytest.mark.parametrize("name", ["pipedream_flush", "pipeoptim"])
@pytest.mark.parametrize("options", [{"clip_norm": 0.05}, {"arithmetic": ComputeOptions("fp16")}], ids=["clip", "fp16"])
def test_gradients_are_complete_after_the_last_w(name, options):
    assert_equal_runs(*METHODS[name], **options)


def test_weight_of_two_stages_has_both_gradients_after_w():
    inputs = torch.randn(48, 1, 8, 8)
    assert_equal_runs(Synchronous(), OneFOneBFlush(), tied_layers, (2, 6), inputs=inputs)


def test_phases_split_or_not():
    whole, split = (MethodCase(Synchronous(), each) for each in (OneFOneBFlush(), splitting(OneFOneBFlush())))
    (losses, state, *_), (split_losses, split_state, *_) = (
        trained(whole),
        trained([(whole, 3), (split, 4), (whole, 99)]),
    )
    assert losses == split_losses
    assert all(torch.equal(state[name], split_state[name]) for name in state)


def test_w_reads_and_releases_what_its_b_reads():
    rules = PipelineRules(splitting(OneFOneB()), METHODS["pipeoptim"].method, 3, 2)
    planned = {each.operation: each for each in rules.planned(1, 8)}
    for t in range(8):
        for j in range(2):
            b, w = planned[backward(t, j)], planned[weight_gradient(t, j)]
            assert w.read == b.read == WeightRead(t)
            assert w.activations == b.activations
            assert not b.releases
    assert planned[weight_gradient(4, 0)].activations is Activations.REBOUND


def test_w_that_reads_another_version_is_a_bug():
    rules = PipelineRules(splitting(OneFOneBFlush()), Synchronous(), 2, 2)
    planned = next(each for each in rules.planned(0, 3) if each.operation == weight_gradient(1, 0))
    rules.check(0, planned, 1, 0)
    with pytest.raises(InvariantError, match=r"W1\.0 reads v2 after 1 updates.* it reads v1"):
        rules.check(0, planned._replace(read=WeightRead(2)), 1, 0)
