"""Distances between weights, measured in a run, against a loop that keeps the weights of every version."""

import math

import pytest
import torch
from support import reference
from support.against_reference import CLASSES, WIDTH, data, model
from support.complex_model import layers as complex_layers
from support.methods import METHODS, fitting
from support.pipelines import batches, half_decay
from support.quick_cases import every
from torch import nn
from torch.optim import Adam

from pipetrain.engine.executors.pipeline import build_finegrained_pipeline, build_pipeline
from pipetrain.engine.executors.pipeline_rules import PipelineRules
from pipetrain.engine.losses import CrossEntropy
from pipetrain.engine.models.chain import LayerChain
from pipetrain.engine.optim.optimizer_factory import OptimizerFactory
from pipetrain.engine.program.drain_interval import DrainInterval
from pipetrain.engine.stage.base import Training
from pipetrain.engine.stage.staleness import MeasuredMinibatches

BATCH, STEPS, N = 8, 9, 2
BOUNDS = [(0, 2), (2, 6), (6, 7)]  # of layers Linear tanh Linear tanh Linear tanh Linear
MOMENTUM = reference.Optimizer("momentum", decay=0.01)
NAMES = ("weight_drift", "forward_error", "backward_error", "weight_discrepancy")
FITTING = [name for name in METHODS if fitting(name, len(BOUNDS), N)]


def parts():
    """The weights of each stage."""
    layers = list(model())
    return [[p.detach().clone() for layer in layers[a:b] for p in layer.parameters()] for a, b in BOUNDS]


def executor_of(rule, every, build=build_pipeline, bounds=BOUNDS, *, gradients=False):
    measured = None if every is None else MeasuredMinibatches(every, with_gradients=gradients)
    training = Training(OptimizerFactory(MOMENTUM.torch_optimizer, half_decay), CrossEntropy(), staleness=measured)
    method, schedule = METHODS[rule]
    return build(LayerChain.of_sequential(model()), bounds, PipelineRules(schedule, method, len(bounds), N), training)


def measured(rule, every=1, **options):
    """Stage -> minibatch -> quantities."""
    executor = executor_of(rule, every, **options)
    executor.train(batches(*data(BATCH * STEPS), BATCH, N), DrainInterval.whole(STEPS))
    return [dict(stage.staleness.take()) for stage in executor.stages]


def flat(weights):
    return torch.cat([w.flatten() for w in weights])


class Observed(reference.Run):
    """The reference, with every quantity by stage and minibatch, written as in docs/staleness.md."""

    def observe(self, t):
        rows = []
        for r, stage in enumerate(self.stages):
            at_forward = self.formulas.newest_at_forward(t, 0, self.N, len(self.stages), r)
            newest_f, newest_b = flat(stage.versions[at_forward]), flat(stage.versions[t])
            read_f, read_b = flat(self._forward_weights(r, t, 0)), flat(self._backward_weights(r, t, 0))
            pairs = ((newest_f, newest_b), (read_f, newest_b), (read_b, newest_b), (read_f, read_b))
            row = {name: (a - b).norm().item() for name, (a, b) in zip(NAMES, pairs, strict=True)}
            row |= {f"relative_{name}": value / newest_b.norm().item() for name, value in row.items()}
            row["weight_norm"] = newest_b.norm().item()
            row["gradient_norm"] = flat(stage.gradient).norm().item()
            rows.append(row)
        return rows


def by_hand(rule):
    run = Observed.of(parts(), MOMENTUM, half_decay, N)
    run.formulas = reference.FORMULAS[rule]
    x, y = data(BATCH * STEPS)
    found = []
    for t, (xs, ys) in enumerate(zip(x.split(BATCH), y.split(BATCH), strict=True)):
        run._minibatch(xs, ys, t)
        rows = run.observe(t)
        run._update()
        for stage, row in zip(run.stages, rows, strict=True):
            row["update_norm"] = (flat(stage.versions[-1]) - flat(stage.versions[-2])).norm().item()
        found.append(rows)
    return found


@pytest.mark.parametrize("rule", every(2, FITTING))
def test_distances_of_each_method_equal_the_reference(rule):
    ours, theirs = measured(rule), by_hand(rule)
    for t in range(STEPS):
        for r in range(len(BOUNDS)):
            assert ours[r][t] == pytest.approx(theirs[t][r], rel=1e-9, abs=1e-12)


def test_synchronous_methods_have_no_distance_and_cosine_one():
    for rule in ("gpipe", "pipedream_flush"):
        for stage in measured(rule, gradients=True):
            for row in stage.values():
                assert all(row[name] == 0.0 for name in NAMES)
                assert row["gradient_cosine"] == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("rule", ["pipeoptim", "pipemare"])
def test_complex_weights_have_the_distances_of_their_parts(rule):
    found = []
    for split in (False, True):
        net = complex_layers(split=split)
        training = Training(
            OptimizerFactory(Adam, half_decay), CrossEntropy(), staleness=MeasuredMinibatches(1, with_gradients=True)
        )
        method, schedule = METHODS[rule]
        rules = PipelineRules(schedule, method, len(net), N)
        executor = build_pipeline(LayerChain.of_sequential(net), [(r, r + 1) for r in range(len(net))], rules, training)
        torch.manual_seed(0)
        x, y = torch.randn(24, 6, dtype=torch.float64), torch.arange(24) % 6
        executor.train(batches(x, y, 4, N), DrainInterval.whole(6))
        found.append([dict(stage.staleness.take()) for stage in executor.stages])
    for ours, theirs in zip(*found, strict=True):
        for t in range(6):
            assert ours[t] == pytest.approx(theirs[t], rel=1e-9)
            assert ours[t]["gradient_cosine"] > 0.1


@pytest.mark.parametrize("rule", ["pipeoptim", "pipemare", "pipedream"])
def test_every_third_step_has_the_values_of_every_step(rule):
    some, every = measured(rule, 3), measured(rule, 1)
    for few, all_of_them in zip(some, every, strict=True):
        assert few == {t: all_of_them[t] for t in (2, 5, 8)}


@pytest.mark.parametrize("rule", ["pipedream", "pipeoptim", "pipemare"])
def test_cosine_equals_that_of_gradients_at_the_newest_weights(rule):
    run = reference.Run.of(parts(), MOMENTUM, half_decay, N)
    ours, (x, y) = measured(rule, gradients=True), data(BATCH * STEPS)
    for t, (xs, ys) in enumerate(zip(x.split(BATCH), y.split(BATCH), strict=True)):
        run.formulas = reference.FORMULAS["gpipe"]
        run._minibatch(xs, ys, t)
        at_newest = [flat(stage.gradient) for stage in run.stages]
        run.formulas = reference.FORMULAS[rule]
        run._minibatch(xs, ys, t)
        for r, stage in enumerate(run.stages):
            applied = flat(stage.gradient)
            cosine = (applied @ at_newest[r] / applied.norm() / at_newest[r].norm()).item()
            assert ours[r][t]["gradient_cosine"] == pytest.approx(cosine, abs=1e-9)
        run._update()
    assert min(row["gradient_cosine"] for row in ours[0].values()) < 1 - 1e-6


@pytest.mark.parametrize("rule", ["gpipe", "pipedream", "pipeoptim", "spectrain", "pipemare", "i_timeprest"])
def test_measuring_changes_neither_results_nor_other_measurements(rule):
    found = []
    for interval in (None, 1):
        executor = executor_of(rule, interval, gradients=interval is not None)
        executor.train(batches(*data(BATCH * STEPS), BATCH, N), DrainInterval.whole(STEPS))
        found.append(([stage.state() for stage in executor.stages], [stage.report() for stage in executor.stages]))
    (states, reports), (measured_states, measured_reports) = found
    assert measured_reports == reports
    for one, other in zip(states, measured_states, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("rule", ["pipedream", "pipeoptim", "spectrain", "pipemare", "naive_async"])
def test_fine_grained_stages_of_whole_layers_measure_the_same(rule):
    units = [(0, 1), (1, 3), (3, 4)]  # the weights of the same layers
    assert measured(rule, build=build_finegrained_pipeline, bounds=units) == measured(rule)


def test_frozen_weights_and_stages_without_weights_count_nothing():
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, CLASSES)).double()
    net[0].bias.requires_grad_(requires_grad=False)
    training = Training(
        OptimizerFactory(MOMENTUM.torch_optimizer, half_decay), CrossEntropy(), staleness=MeasuredMinibatches(1)
    )
    method, schedule = METHODS["pipeoptim"]
    pipeline = build_pipeline(
        LayerChain.of_sequential(net), [(0, 1), (1, 2), (2, 3)], PipelineRules(schedule, method, 3, 1), training
    )
    before = net[0].weight.detach().norm().item()
    pipeline.train(batches(*data(BATCH * STEPS), BATCH), DrainInterval.whole(2))
    first, none, _ = (dict(stage.staleness.take())[0] for stage in pipeline.stages)
    assert first["weight_norm"] == pytest.approx(before)
    assert none["weight_norm"] == none["update_norm"] == 0.0
    assert math.isnan(none["relative_weight_drift"])
