"""Fine-grained stages against the simulated pipeline that they stand in for, bit for bit."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from support.methods import METHODS, MethodCase, fitting
from support.pipelines import Pipeline, batches, half_decay, pipeline, sgd
from support.quick_cases import every
from support.split_schedules import splitting
from torch import nn
from torch.utils.checkpoint import checkpoint

from pipetrain.engine.executors.admission_gate import BrokenOffError
from pipetrain.engine.executors.hooks import RunHooks
from pipetrain.engine.executors.pipeline import build_finegrained_pipeline
from pipetrain.engine.executors.pipeline_rules import PipelineRules
from pipetrain.engine.losses import CrossEntropy
from pipetrain.engine.methods.pipemare import PipeMare
from pipetrain.engine.models.chain import LayerChain
from pipetrain.engine.models.weight_units import weight_units
from pipetrain.engine.optim.optimizer_factory import OptimizerFactory
from pipetrain.engine.program.recomputation import RecomputeSegments
from pipetrain.engine.schedules.pipelined_backprop import PipeMareSchedule
from pipetrain.engine.stage.base import Training

STAGES, CUTS = 4, [1, 2, 4]  # a unit in each stage


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 8), nn.Dropout(0.2), nn.Linear(8, 3))


def data():
    torch.manual_seed(5)
    return torch.randn(34, 6), torch.randint(0, 3, (34,))


def finegrained(method, schedule, stages, microbatches=1, segments=None, clip_norm=None, *, layers=None, **chosen):
    chain = LayerChain.of_sequential(model() if layers is None else layers)
    units = weight_units(chain)
    ends = [-(-r * len(units) // stages) for r in range(stages + 1)]
    bounds = list(pairwise(ends))
    spans = None if segments is None else RecomputeSegments(tuple(segments), stages)
    first = None if segments is None else tuple(units[bounds[stage][0]].layer for stage in segments)
    losses = []
    rules = PipelineRules(schedule, method, stages, microbatches, spans)
    training = Training(OptimizerFactory(sgd, half_decay, **chosen), CrossEntropy(), clip_norm)
    hooks = RunHooks(lambda _t, value: losses.append(value.mean.item()))
    executor = build_finegrained_pipeline(chain, bounds, rules, training, hooks, first)
    return Pipeline(executor, losses)


def assert_equal(rule, N, segments=None, clip_norm=None, **chosen):
    x, y = data()
    theirs = pipeline(model(), CUTS, rule, N, recompute=segments, clip_norm=clip_norm, **chosen)
    theirs.train(batches(x, y, 12, N), 2)
    method, schedule = MethodCase.named(rule)
    ours = finegrained(method, schedule, STAGES, N, segments, clip_norm, **chosen).train(batches(x, y, 12, N), 2)
    assert ours.losses == theirs.losses
    left, right = ours.state(), theirs.state()
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)
    for field in ("forward_staleness", "backward_staleness"):
        assert ours.reports(field) == theirs.reports(field)


@pytest.mark.parametrize("rule", ["pipedream_flush", "pipeoptim"])
def test_split_backwards_change_no_bit_of_fine_grained_stages(rule):
    method, schedule = METHODS[rule]
    assert_equal(MethodCase(method, splitting(schedule)), 4)


@pytest.mark.parametrize("N", [pytest.param(1, marks=pytest.mark.slow), 4])
@pytest.mark.parametrize("rule", every(2, METHODS))
def test_fine_grained_stages_equal_pipeline_of_units(rule, N):
    if fitting(rule, STAGES, N):
        assert_equal(rule, N)


class Checkpointed(nn.Module):
    """A layer that recomputes its activations by itself."""

    def __init__(self, *, reentrant):
        super().__init__()
        self.linear, self.reentrant = nn.Linear(4, 4), reentrant

    def forward(self, x):
        if not torch.is_grad_enabled():
            return self.linear(x).tanh()
        return checkpoint(lambda x: self.linear(x).tanh(), x, use_reentrant=self.reentrant)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("rule", ["gpipe", "pipedream", "pipeoptim", "stale"])
def test_fine_grained_layers_may_checkpoint_themselves(rule, reentrant):
    def of_four():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 4), *(Checkpointed(reentrant=reentrant) for _ in range(2)), nn.Linear(4, 4))

    x, y = torch.randn(36, 4), torch.arange(36) % 4
    theirs = pipeline(of_four(), [1, 2, 3], rule).train(batches(x, y, 4))
    ours = finegrained(*METHODS[rule], 4, layers=of_four()).train(batches(x, y, 4))
    assert ours.losses == theirs.losses


@pytest.mark.parametrize(
    ("rule", "segments", "N"),
    [
        *((rule, [0, 2], 4) for rule in ("gpipe", "pipedream_pipemare", "stale", "pipemare_t1", "pipemare_t2")),
        *(("pipemare", segments, N) for segments, N in (([0, 2], 4), ([0], 1))),
    ],
)
def test_fine_grained_recomputation_equals_that_of_a_pipeline(rule, segments, N):
    assert_equal(rule, N, segments)


@pytest.mark.parametrize("rule", ["gpipe", "pipemare"])
def test_fine_grained_clipping_equals_that_of_a_pipeline(rule):
    assert_equal(rule, 2, clip_norm=0.3)


@pytest.mark.parametrize("rule", ["gpipe", "pipedream", "pipemare"])
def test_fine_grained_stages_have_the_averages_of_a_pipeline(rule):
    loader = batches(*data(), 12)
    theirs = pipeline(model(), CUTS, rule, average_decay=0.7).train(loader, 2)
    ours = finegrained(*METHODS[rule], STAGES, average_decay=0.7).train(loader, 2)
    left, right = (
        {name: average for stage in each.stages for name, average in stage.averages.items()} for each in (ours, theirs)
    )
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)
    assert ours.executor.evaluate(loader) == theirs.executor.evaluate(loader)
    plain = pipeline(model(), CUTS, rule).train(loader, 2)
    assert ours.executor.evaluate(loader) != plain.executor.evaluate(loader)


def by_dims(parameters):
    """Matrices, and vectors with another weight decay and rate."""
    vectors = [p for p in parameters.values() if p.dim() < 2]
    matrices = [p for p in parameters.values() if p.dim() >= 2]
    groups = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0, "lr_scale": 3.0}]
    return [group for group in groups if group["params"]]


@pytest.mark.parametrize("rule", ["gpipe", "pipeoptim", "spectrain", "pipemare"])
def test_fine_grained_parameter_groups_equal_those_of_a_pipeline(rule):
    assert_equal(rule, 2, groups=by_dims)


@pytest.mark.parametrize("stages", [1, 3, 4, 11, 40])
def test_fine_grained_stages_without_a_unit_add_only_delay(stages):
    x, y = data()
    pipe = finegrained(PipeMare(t1=False), PipeMareSchedule(), stages).train(
        batches(x.repeat(2, 1)[:60], y.repeat(2)[:60], 2)
    )
    staleness = pipe.reports("forward_staleness")
    filled = {unit * stages // 4 for unit in range(4)}
    for r in range(stages):
        delay = 2 * (stages - 1 - r) + 1
        reached = 2 * stages - 1 < 30  # the steady state begins when stage 0's first version has come back
        assert staleness[r] == ([delay] if r in filled and reached else [])
    assert [stage.index for stage in pipe.stages if stage.weights.newest.tensors] == sorted(filled)


def test_fine_grained_stages_hold_versions_for_their_delay():
    x, y = data()
    for stages in (4, 8, 16):
        loader = batches(x.repeat(5, 1), y.repeat(5), 2)
        pipe = finegrained(PipeMare(t2=False), PipeMareSchedule(), stages).train(loader)
        for stage in pipe.stages:
            if stage.weights.newest.tensors:
                delay = 2 * (stages - 1 - stage.index) + 1
                size = sum(tensor.nbytes for tensor in stage.weights.newest.tensors.values())
                assert stage.report()["weight_versions_max"] == delay + 1
                assert stage.report()["weight_bytes_peak"] == size * (delay + 1)


def test_stopped_fine_grained_stages_keep_newest_weights_only():
    x, y = data()
    pipe = finegrained(*METHODS["pipedream"], STAGES)
    gate = pipe.executor.hooks.gate
    gate.hold()
    gate.shut(5)
    pipe.train(batches(x, y, 4))
    assert gate.ended_after == 5
    assert [stage.weights.held() for stage in pipe.stages] == [[5]] * STAGES


@pytest.mark.parametrize("ends", [True, False])
def test_evaluation_stops_at_shut_gate_and_survives_a_pause(ends):
    x, y = data()
    pipe = finegrained(*METHODS["pipedream"], STAGES)
    told = []
    executor = pipe.executor
    executor.hooks = replace(executor.hooks, on_progress=told.append)
    gate = executor.hooks.gate
    whole, parts = executor.evaluate(batches(x, y, 4)), len(told)
    assert parts > 2
    assert gate.begun == parts
    told.clear()
    gate.ends = ends
    gate.hold()
    gate.shut(parts + 1)
    if ends:
        with pytest.raises(BrokenOffError):
            executor.evaluate(batches(x, y, 4))
        assert told == [f"evaluation 1 of {parts}"]
    else:
        assert executor.evaluate(batches(x, y, 4)) == whole
        assert (len(told), gate.openings) == (parts, 1)


class Tracking(nn.Module):
    """Puts another tensor in the place of its buffer."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 8)
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, inputs):
        self.mean = 0.9 * self.mean + 0.1 * inputs.mean(0).detach()
        return self.linear(inputs)


def test_buffers_that_a_forward_replaces_are_in_the_state():
    def layers():
        torch.manual_seed(0)
        return nn.Sequential(Tracking(), nn.Linear(8, 3))

    x, y = data()
    theirs = pipeline(layers(), [1], "gpipe", 2)
    theirs.train(batches(x, y, 12, 2), 2)
    ours = finegrained(*METHODS["gpipe"], 2, 2, layers=layers()).train(batches(x, y, 12, 2), 2)
    assert ours.losses == theirs.losses
    assert all(torch.equal(value, theirs.state()[name]) for name, value in ours.state().items())


class Forces(nn.Linear):
    """Differentiates an energy by its inputs in the forward."""

    def forward(self, inputs):
        with torch.enable_grad():
            inputs = inputs if inputs.requires_grad else inputs.detach().requires_grad_()
            energy = super().forward(inputs).square().sum()
            (force,) = torch.autograd.grad(energy, inputs, create_graph=True)
        return force


@pytest.mark.parametrize("method", ["gpipe", "pipedream", "pipeoptim"])
def test_layer_that_differentiates_in_its_forward_trains(method):
    def layers():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 8), Forces(8, 8), nn.Linear(8, 3))

    x, y = data()
    theirs = pipeline(layers(), [1, 2], method)
    theirs.train(batches(x, y, 12), 1)
    ours = finegrained(*METHODS[method], 3, layers=layers()).train(batches(x, y, 12), 1)
    assert ours.losses == theirs.losses
