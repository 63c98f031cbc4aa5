"""Weight versions: copied on write, released with their last reader, and counted on their storages."""

import gc

import pytest
import torch
from harness import RULES, batches, newest, pipeline, sgd, stage_of
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from pipetrain.optimizer import StageOptimizer
from pipetrain.schedules import Read
from pipetrain.weights import Predicted, StorageMeter, Weights

BYTES = 4 * (6 * 6 + 6)


@pytest.fixture
def versions():
    torch.manual_seed(0)
    parameters = {"w": nn.Parameter(torch.randn(3)), "b": nn.Parameter(torch.randn(1))}
    return Weights(parameters), StageOptimizer(sgd, parameters, lambda k: 0.1), parameters


def gradient():
    return {"w": torch.ones(3), "b": torch.ones(1)}


def test_an_update_that_nobody_reads_behind_works_in_place(versions):
    weights, optimizer, parameters = versions
    before = {name: parameter.data_ptr() for name, parameter in parameters.items()}
    weights.update(optimizer, gradient(), keep=False)
    assert {name: parameter.data_ptr() for name, parameter in parameters.items()} == before
    assert weights.held() == [1]
    assert weights.meter.versions_max == 1


def test_a_version_kept_holds_its_values_in_the_storage_that_its_readers_know(versions):
    weights, optimizer, parameters = versions
    old = {name: (tensor, tensor.clone()) for name, tensor in weights.version(0).tensors.items()}
    weights.update(optimizer, gradient(), keep=True)
    for name, (tensor, value) in old.items():
        assert torch.equal(tensor, value)
        assert weights.version(0).tensors[name].data_ptr() == tensor.data_ptr()
        assert not torch.equal(weights.version(1).tensors[name], value)
        assert weights.version(1).tensors[name].data_ptr() == parameters[name].data_ptr()
    assert weights.held() == [0, 1]


def test_kept_versions_are_those_that_the_updates_made(versions):
    weights, optimizer, parameters = versions
    values = [parameters["w"].detach().clone()]
    for _ in range(3):
        weights.update(optimizer, gradient(), keep=True)
        values.append(parameters["w"].detach().clone())
    for number, value in enumerate(values):
        assert torch.equal(weights.version(number).tensors["w"], value)
        assert weights.version(number).number == number


def test_a_version_that_is_not_held_is_an_error_naming_it(versions):
    weights, optimizer, _ = versions
    weights.update(optimizer, gradient(), keep=False)
    for number in (0, 2):
        with pytest.raises(RuntimeError, match=f"version {number} is not held"):
            weights.version(number)


def test_a_released_version_frees_its_storages(versions):
    weights, optimizer, _ = versions
    weights.update(optimizer, gradient(), keep=True)
    references = [StorageWeakRef(tensor.untyped_storage()) for tensor in weights.version(0).tensors.values()]
    assert not any(reference.expired() for reference in references)
    weights.release(0)
    assert all(reference.expired() for reference in references)
    assert weights.held() == [1]


def test_releasing_the_newest_keeps_it(versions):
    weights, _, _ = versions
    weights.release(0)
    assert weights.version(0) is weights.newest


def test_the_meter_counts_sets_alive_and_their_bytes():
    meter = StorageMeter()
    first = {"w": torch.zeros(10), "b": torch.zeros(2)}
    meter.watch(first)
    assert (meter.versions_max, meter.bytes_peak) == (1, 48)
    second = {"w": torch.zeros(10)}
    meter.watch(second)
    assert (meter.versions_max, meter.bytes_peak) == (2, 88)
    del first
    third = {"w": torch.zeros(10)}
    meter.watch(third)
    assert (meter.versions_max, meter.bytes_peak) == (2, 88)
    fourth = {"w": torch.zeros(10)}
    meter.watch(fourth)
    assert (meter.versions_max, meter.bytes_peak) == (3, 120)


def test_the_meter_sees_a_set_of_which_one_tensor_or_a_view_of_it_lives():
    meter = StorageMeter()
    first = {"w": torch.zeros(10), "b": torch.zeros(2)}
    view = first["b"][:1]
    meter.watch(first)
    del first
    second = {"w": torch.zeros(10)}
    meter.watch(second)
    assert meter.versions_max == 2
    assert view.numel() == 1


def trained(rule, D, N, build=sgd):
    torch.manual_seed(0)
    layers = [nn.Linear(6, 6) for _ in range(D)]
    pipe = pipeline(nn.Sequential(*layers), range(1, D), rule, N, build)
    minibatches = 2 * D + 2
    return pipe.train(batches(torch.randn(4 * minibatches, 6), torch.arange(4 * minibatches) % 6, 4, N), 2)


def versions_of_the_specification(rule, D, N):
    stages = range(D)
    if rule == "pipedream":
        return [-(-(D - 1 - r) // N) + 1 for r in stages]
    if rule == "vertical_sync":
        return [-(-(D - 1) // N) + 1 for r in stages]
    if rule == "pipeoptim":
        return [2 if r < D - 1 else 1 for r in stages]
    return [1 for _ in stages]


@pytest.mark.parametrize("N", [1, 2, 4])
@pytest.mark.parametrize("D", [1, 2, 3, 4])
@pytest.mark.parametrize("rule", RULES)
def test_versions_measured_are_those_of_the_specification(rule, D, N):
    pipe, wanted = trained(rule, D, N), versions_of_the_specification(rule, D, N)
    assert pipe.reports("weight_versions_max") == wanted
    assert pipe.reports("weight_bytes_peak") == [versions * BYTES for versions in wanted]


@pytest.mark.parametrize("rule", RULES)
def test_after_a_drain_every_stage_holds_the_newest_version_alone(rule):
    pipe = trained(rule, 4, 1)
    assert [stage.weights.held() for stage in pipe.stages] == [[20]] * 4
    alive = [sum(1 for storages in stage.weights.meter._live if storages) for stage in pipe.stages]
    assert alive == [1] * 4


@pytest.mark.parametrize("build", [torch.optim.Adam, torch.optim.AdamW, lambda p: torch.optim.SGD(p, lr=0.1)])
def test_pipeoptim_holds_two_versions_with_every_optimizer(build):
    assert trained("pipeoptim", 3, 1, build).reports("weight_versions_max") == [2, 2, 1]


def test_a_prediction_is_gone_when_its_forward_ends():
    gc.disable()
    try:
        stage = stage_of(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), index=1)
        stage.optimizer.step({name: torch.ones_like(p) for name, p in stage.optimizer.parameters.items()})
        made = []

        class Spied(Predicted):
            def apply(self, version, optimizer):
                found = Predicted.apply(self, version, optimizer)
                made.extend(StorageWeakRef(tensor.untyped_storage()) for tensor in found.values())
                return found

        read = Read(stage.updates, Spied(2))
        output = stage.forward((0, 0), (torch.randn(2, 4),), read, changes=True)
        assert len(made) == 4
        assert all(reference.expired() for reference in made)
        (gradient,) = stage.backward((0, 0), (torch.ones_like(output[0]),), newest(stage), changes=True)
        assert gradient.shape == (2, 4)
        assert len(stage.take_gradients()) == 4
    finally:
        gc.enable()


def test_an_old_version_is_freed_when_its_last_backward_ends():
    stage = stage_of(nn.Linear(4, 4), index=1)
    stage.forward((0, 0), (torch.randn(2, 4),), Read(0), changes=False)
    stage.update(
        0, {name: torch.ones_like(p) for name, p in stage.optimizer.parameters.items()}, keep=True, steady=True
    )
    references = [StorageWeakRef(t.untyped_storage()) for t in stage.weights.version(0).tensors.values()]
    stage.weights.release(0)
    assert not any(reference.expired() for reference in references)  # the graph of the forward reads them
    stage.backward((0, 0), (torch.ones(2, 4),), Read(0), changes=False)
    assert all(reference.expired() for reference in references)


@pytest.mark.parametrize("N", [1, 2, 4])
@pytest.mark.parametrize("D", [1, 2, 3, 4])
@pytest.mark.parametrize("rule", RULES)
def test_staleness_measured_is_that_of_the_formulas_in_the_steady_state(rule, D, N):
    pipe = trained(rule, D, N)
    own = [sorted({max(0, -(-(D - 1 - r - j) // N)) for j in range(N)}) for r in range(D)]
    first = [sorted({max(0, -(-(D - 1 - j) // N)) for j in range(N)})] * D
    none = [[0]] * D
    forward, backward = {
        "naive_async": (own, none),
        "pipedream": (own, own),
        "vertical_sync": (first, first),
        "pipeoptim": (own, none),
    }.get(rule, (none, none))
    assert pipe.reports("forward_staleness") == forward
    assert pipe.reports("backward_staleness") == backward
