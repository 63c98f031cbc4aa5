"""A method with a running statistic of its own, defined here alone, runs everywhere that the built-in ones do."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from support.equal_bits import assert_same, both_ways
from support.pipelines import batches, pipeline
from support.worker_pool import job, simulated
from torch import nn
from typing_extensions import override

from pipetrain.engine.methods import Method
from pipetrain.engine.program.weight_reads import WeightRead, WeightTransform
from pipetrain.engine.schedules.base import Family
from pipetrain.engine.schedules.one_f_one_b import OneFOneB
from pipetrain.engine.weights.statistic import WeightStatistic
from pipetrain.runner.training.checkpoint import contents, store
from pipetrain.runner.training.checkpoint.contents import Kind


class PolyakAverage(WeightStatistic):
    """The mean of all versions so far, and how many there were."""

    name: ClassVar[str] = "polyak"

    def __init__(self, weights):
        self.mean = {name: weight.clone() for name, weight in weights.items()}
        self.count = 1

    @override
    def follow(self, before, after):
        self.count += 1
        for name, mean in self.mean.items():
            mean.add_((after[name] - mean) / self.count)

    def state(self):
        # one tensor for each weight: the count stands behind the mean
        count = torch.tensor([float(self.count)])
        return {name: torch.cat([mean.flatten(), count]) for name, mean in self.mean.items()}

    def load_state(self, state):
        for name, mean in self.mean.items():
            mean.copy_(state[name][:-1].view_as(mean))
            self.count = int(state[name][-1])


@dataclass(frozen=True)
class Averaged(WeightTransform):
    """The mean of all versions in place of the newest."""

    def __str__(self):
        return "~"

    @override
    def apply(self, version, weights):
        return {name: mean.clone() for name, mean in weights.statistic.mean.items()}


class Polyak(Method):
    """F reads the mean of all versions so far, B the newest."""

    name, family = "polyak", Family.CONTINUOUS

    def forward(self, at):
        return WeightRead(at.newest, Averaged())

    @override
    def statistic(self, context, weights):
        return PolyakAverage(weights)

    @override
    def weight_versions(self, context):
        return 2


EPOCHS = {"train": {"epochs": 4}, "checkpoint": {"every_epochs": 1}}


def polyak(folder, stages=2, resume=None):
    method = {"_target_": "engine.methods.test_own_statistic.Polyak"}
    return job(folder, "naive_async", stages, resume=resume, method=method, **EPOCHS)


def test_own_statistic_is_read_without_undeclared_versions():
    torch.manual_seed(0)
    layers = [nn.Linear(3, 3, bias=False).double() for _ in range(2)]
    x, y = torch.randn(24, 3).double(), torch.arange(24) % 3
    expected = by_hand([layer.weight.detach().clone() for layer in layers], x, y)
    pipe = pipeline(
        nn.Sequential(*layers),
        [1],
        (Polyak(), OneFOneB()),
        build=lambda p: torch.optim.SGD(p, lr=0.0),
        rate=lambda _k: 0.1,
    )
    pipe.train(batches(x, y, 4))
    for ours, theirs in zip(pipe.state().values(), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)
    assert pipe.reports("weight_versions_max") == [2, 2]


def by_hand(weights, x, y):
    """Two stages of one matrix each under 1F1B: the first reads its forward's weights an update early."""
    versions = [[w] for w in weights]
    for t in range(6):
        xs, ys = x[4 * t : 4 * t + 4], y[4 * t : 4 * t + 4]
        first = torch.stack(versions[0][: max(1, t)]).mean(0)
        second = torch.stack(versions[1][: t + 1]).mean(0)
        hidden = (xs @ first.T).requires_grad_()
        scores = (hidden @ second.T).requires_grad_()
        (g,) = torch.autograd.grad(nn.functional.cross_entropy(scores, ys), scores)
        back = g @ versions[1][t]
        versions[0].append(versions[0][t] - 0.1 * back.T @ xs)
        versions[1].append(versions[1][t] - 0.1 * g.T @ hidden.detach())
    return [each[-1] for each in versions]


def test_own_statistic_resumes_with_equal_bits(tmp_path):
    whole = simulated(polyak(tmp_path / "whole"))
    half = store.checkpoints(tmp_path / "whole")[1]
    again = simulated(polyak(tmp_path / "again", resume=half))
    assert_same(again, whole)
    plain = simulated(job(tmp_path / "plain", "naive_async", 2, **EPOCHS))
    assert plain["weights_sha256"] != whole["weights_sha256"]


def test_own_statistic_is_saved_under_whole_model_names(tmp_path):
    simulated(polyak(tmp_path / "run"))
    folder = store.checkpoints(tmp_path / "run")[-1]
    weights = contents.load_tensors(folder, Kind.OPTIMIZER)
    found = contents.load_tensors(folder, Kind.STATISTIC)
    assert {key for values in found.values() for key in values} == {"polyak"}
    assert found.keys() == weights.keys()


def test_another_partition_loads_the_statistic(tmp_path):
    simulated(polyak(tmp_path / "two"))
    half = store.checkpoints(tmp_path / "two")[1]
    assert simulated(polyak(tmp_path / "three", 3, half))["steps"] == 24


def test_both_executors_give_equal_bits(tmp_path):
    both_ways([polyak(tmp_path)])
