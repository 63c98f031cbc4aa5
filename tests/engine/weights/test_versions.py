"""Weight versions: copied on write, released with their last reader, and counted on their storages."""

import gc
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import pytest
import torch
from support import reference
from support.methods import METHODS, fitting_cases
from support.pipelines import batches, newest, pipeline, sgd, stage_of, unit_gradients
from support.quick_cases import quick_cases
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from typing_extensions import override

from pipetrain.engine.errors import RunError
from pipetrain.engine.optim.stage_optimizer import StageOptimizer
from pipetrain.engine.program.planned_operations import Activations
from pipetrain.engine.program.weight_reads import StageContext, WeightRead, WeightTransform
from pipetrain.engine.weights.transforms import Predicted
from pipetrain.engine.weights.versions import Weights

BYTES = 4 * (6 * 6 + 6)


@pytest.fixture
def versions():
    torch.manual_seed(0)
    parameters = {"w": nn.Parameter(torch.randn(3)), "b": nn.Parameter(torch.randn(1))}
    return Weights(parameters, StageOptimizer(sgd, parameters, lambda _k: 0.1)), parameters


def gradient():
    return {"w": torch.ones(3), "b": torch.ones(1)}


def test_update_is_in_place_if_old_version_is_unread(versions):
    weights, parameters = versions
    before = {name: parameter.data_ptr() for name, parameter in parameters.items()}
    weights.update(gradient(), keep=False)
    assert {name: parameter.data_ptr() for name, parameter in parameters.items()} == before
    assert weights.held() == [1]
    assert weights.meter.versions_max == 1


def test_kept_version_keeps_its_values_and_its_storage(versions):
    weights, parameters = versions
    old = {name: (tensor, tensor.clone()) for name, tensor in weights.version(0).tensors.items()}
    weights.update(gradient(), keep=True)
    for name, (tensor, value) in old.items():
        assert torch.equal(tensor, value)
        assert weights.version(0).tensors[name].data_ptr() == tensor.data_ptr()
        assert not torch.equal(weights.version(1).tensors[name], value)
        assert weights.version(1).tensors[name].data_ptr() == parameters[name].data_ptr()
    weights.update(gradient(), keep=True)
    assert weights.held() == [0, 1, 2]
    assert [weights.version(number).number for number in range(3)] == [0, 1, 2]
    assert all(torch.equal(tensor, value) for tensor, value in old.values())


def test_kept_version_has_the_frozen_weights_of_the_newest():
    parameters = {"w": nn.Parameter(torch.ones(3)), "frozen": nn.Parameter(torch.ones(5), requires_grad=False)}
    weights = Weights(parameters, StageOptimizer(sgd, {"w": parameters["w"]}, lambda _k: 0.1))
    weights.update({"w": torch.ones(3)}, keep=True)
    kept, newest = (weights.version(number).tensors for number in (0, 1))
    assert kept["frozen"].data_ptr() == newest["frozen"].data_ptr() == parameters["frozen"].data_ptr()
    assert kept["w"].data_ptr() != newest["w"].data_ptr()
    assert (weights.meter.versions_max, weights.meter.bytes_peak) == (2, 4 * (2 * 3 + 5))


def test_reading_unheld_version_is_an_error_naming_it(versions):
    weights, _ = versions
    weights.update(gradient(), keep=False)
    for number in (0, 2):
        with pytest.raises(RuntimeError, match=f"version {number} is not held"):
            weights.version(number)


def test_kept_version_takes_the_memory_of_a_released_one(versions):
    weights, _ = versions
    memory = []
    for number in range(6):
        weights.update(gradient(), keep=True)
        memory.append(weights.newest.tensors["w"].data_ptr())
        weights.release(number)
    assert memory[2:] == [memory[0], memory[1]] * 2
    assert weights.meter.versions_max == 2


def test_released_version_that_is_still_read_keeps_its_values(versions):
    weights, _ = versions
    weights.update(gradient(), keep=True)
    held = weights.version(1).tensors["w"][1:]
    value = held.clone()
    for number in range(1, 5):
        weights.update(gradient(), keep=True)
        weights.release(number - 1)
        weights.release(number)
    assert torch.equal(held, value)


def test_prediction_reuses_memory_of_last_applied_gradient(versions):
    weights, _ = versions
    weights.update(gradient(), keep=False)
    weights.read(1, Predicted(1))
    weights.pool.free()  # as the next gradient does when it begins
    applied = gradient()
    pointers = {name: tensor.data_ptr() for name, tensor in applied.items()}
    weights.update(applied, keep=False)
    del applied
    predicted = weights.read(2, Predicted(1))
    assert {name: tensor.data_ptr() for name, tensor in predicted.items()} == pointers


def minibatches_of(rule, D, N):
    """Enough for as many versions as may be held, and a steady state."""
    formulas = reference.FORMULAS[rule]
    held = formulas.in_flight(D, 0)
    return 2 * (held if formulas.whole_backward else -(-held // N)) + 4


@cache
def trained(rule, D, N):
    """A pipeline after an epoch; several tests look at what was measured on it."""
    torch.manual_seed(0)
    layers = [nn.Linear(6, 6) for _ in range(D)]
    pipe = pipeline(nn.Sequential(*layers), range(1, D), rule, N)
    minibatches = minibatches_of(rule, D, N)
    return pipe.train(batches(torch.randn(4 * minibatches, 6), torch.arange(4 * minibatches) % 6, 4, N))


def predictions_in_flight(formulas, D, N, r):
    """Most predictions between F and B: of each version one for each number of updates ahead."""
    d = formulas.in_flight(D, r) - 1
    spans = ([((k - d) // N, k // N) for k in range(last - d, last + 1)] for last in range(2 * d, 2 * d + N))
    return max(len({(version, own) for version, own in span if version < own}) for span in spans)


def versions_of_the_specification(rule, D, N):
    stages, formulas = range(D), reference.FORMULAS[rule]
    f = [formulas.in_flight(D, r) for r in stages]
    if not formulas.whole_backward:
        f = [-(-(held - 1) // N) + 1 for held in f]
    backward_uses = 1
    spectrain = [2] * D if D > 2 else [2, 1][-D:]  # the last of two stages predicts floor(r/2) = 0 steps
    special = {
        "pipedream": f,
        "pipedream_pipemare": f,
        "vertical_sync": [f[0]] * D,
        "pipedream_2bw": [2] * D,
        "spectrain": spectrain,
        "spectrain_depth": spectrain,
        "pipeoptim": [2] * (D - 1) + [1],
        "pipeoptim_backprop": [2] * (D - 1) + [1],
        "pipemare_t2": [1 + backward_uses] * D,
        "pipemare": [1 + backward_uses] * D,
        "lwp_stash": [1 + predictions_in_flight(formulas, D, N, r) for r in stages],
        "timeprest": [r + 1 for r in stages],
        "i_timeprest": [f[r] + backward_uses for r in stages[:-1]] + [1],
    }
    return special.get(rule, [1] * D)


@pytest.mark.parametrize(("rule", "D", "N"), quick_cases())
def test_versions_and_staleness_measured_are_those_of_the_specification(rule, D, N):
    pipe, wanted = trained(rule, D, N), versions_of_the_specification(rule, D, N)
    assert pipe.reports("weight_versions_max") == wanted
    assert pipe.reports("weight_bytes_peak") == [versions * BYTES for versions in wanted]
    formulas, late = reference.FORMULAS[rule], 100
    own = [sorted({late - formulas.version_of_forward(late, j, N, D, r) for j in range(N)}) for r in range(D)]
    assert pipe.reports("forward_staleness") == own
    assert pipe.reports("backward_staleness") == (own if formulas.stashes else [[0]] * D)


@pytest.mark.parametrize(("rule", "D", "N"), fitting_cases(stages=(1, 3, 4, 7), microbatches=(1, 3, 8)))
def test_method_declares_only_specified_versions(rule, D, N):
    method, schedule = METHODS[rule]
    declared = [method.weight_versions(StageContext.under(schedule, r, D, N)) for r in range(D)]
    specified = versions_of_the_specification(rule, D, N)
    if rule == "lwp_stash" and N > 1:  # the method does not know how the microbatches lie
        assert all(most >= each for most, each in zip(declared, specified, strict=True))
    else:
        assert declared == specified


@pytest.mark.parametrize("rule", METHODS)
def test_every_stage_holds_only_newest_version_after_drain(rule):
    pipe = trained(rule, 3, 4)
    assert [stage.weights.held() for stage in pipe.stages] == [[minibatches_of(rule, 3, 4)]] * 3
    for stage in pipe.stages:
        stage.weights.meter.mark()
    assert [stage.weights.meter.versions_since for stage in pipe.stages] == [1] * 3


def test_prediction_is_spare_after_forward_and_freed_by_gradient():
    gc.disable()
    try:
        stage = stage_of(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), index=1)
        stage.optimizer.step(unit_gradients(stage))
        made = []

        class Spied(Predicted):
            def apply(self, version, weights):
                found = Predicted.apply(self, version, weights)
                made.extend(StorageWeakRef(tensor.untyped_storage()) for tensor in found.values())
                return found

        read = WeightRead(stage.updates, Spied(2))
        output = stage.forward((0, 0), (torch.randn(2, 4),), read, Activations.REBOUND, store=False)
        assert len(made) == 4
        again = stage.weights.pool.empty_like(stage.weights.newest.tensors)
        assert {StorageWeakRef(tensor.untyped_storage()) for tensor in again.values()} == set(made)
        del again
        (gradient,) = stage.backward([(0, 0)], (torch.ones_like(output[0]),), newest(stage))
        assert gradient.shape == (2, 4)
        assert all(reference.expired() for reference in made)
        assert len(stage.gradients.take()) == 4
    finally:
        gc.enable()


class Rows(nn.Module):
    """The outputs of an LSTM, which keeps a list of its weights beside its parameters."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 4)

    def forward(self, x):
        return self.lstm(x)[0]


@pytest.mark.parametrize("activations", [Activations.KEPT, Activations.REBOUND, Activations.DROPPED])
def test_lstm_keeps_no_weights_once_its_forward_is_over(activations):
    stage = stage_of(Rows(), index=1)
    stage.optimizer.step(unit_gradients(stage))
    read = WeightRead(stage.updates, Predicted(2))
    stage.forward((0, 0), (torch.randn(2, 4),), read, activations, store=activations is Activations.DROPPED)
    if activations is not Activations.DROPPED:
        stage.backward([(0, 0)], (torch.ones(2, 4),), read if activations is Activations.KEPT else newest(stage))
    stage.weights.pool.free()
    stage.weights.meter.mark()
    assert stage.weights.meter.versions_since == 1


@dataclass(frozen=True)
class DoubledBias(WeightTransform):
    stashed: ClassVar[bool] = True

    def __str__(self):
        return "*2"

    @override
    def apply(self, version, weights):
        return {"b": 2 * version.tensors["b"]}


def test_stashed_transform_keeps_the_weights_that_it_leaves_out(versions):
    weights, _ = versions
    expected = weights.newest.tensors["w"].clone(), 2 * weights.newest.tensors["b"]
    forward = weights.read(0, DoubledBias())
    weights.update(gradient(), keep=False)
    for found in (forward, weights.read(0, DoubledBias())):
        assert torch.equal(found["w"], expected[0])
        assert torch.equal(found["b"], expected[1])


@dataclass(frozen=True)
class Returning(WeightTransform):
    name: str
    numbers: int

    def __str__(self):
        return "?"

    @override
    def apply(self, version, weights):
        return {self.name: torch.ones(self.numbers)}


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (Returning("bias", 1), "'bias', which is no weight of this stage"),
        (Returning("w", 1), r"'w' with shape \[1\]; this weight has shape \[3\]"),
    ],
)
def test_transform_that_cannot_replace_weights_is_named(versions, transform, message):
    weights, _ = versions
    for read in (weights.read, weights.peek):
        with pytest.raises(RunError, match=rf"transform Returning\(.* returned {message}"):
            read(0, transform)


def test_old_version_is_freed_when_its_last_backward_ends():
    stage = stage_of(nn.Linear(4, 4), index=1)
    stage.forward((0, 0), (torch.randn(2, 4),), WeightRead(0), Activations.KEPT, store=False)
    stage.update(0, unit_gradients(stage), keep=True, steady=True)
    references = [StorageWeakRef(t.untyped_storage()) for t in stage.weights.version(0).tensors.values()]
    stage.weights.release(0)
    assert not any(reference.expired() for reference in references)  # the graph of the forward reads them
    stage.backward([(0, 0)], (torch.ones(2, 4),), WeightRead(0))
    assert all(reference.expired() for reference in references)
