"""Replicated stages, simulated: against plain training with larger minibatches, and against closed forms."""

import copy
import math

import pytest
import torch
from support.methods import METHODS, MethodCase
from support.pipelines import batches, difference, pipeline, sgd
from torch import nn

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.executors.pipeline_rules import PipelineRules
from pipetrain.engine.executors.replicas.averaging import InProcessAveraging, Round, RoundGradients, mean_in_first
from pipetrain.engine.methods.asp import ASP
from pipetrain.engine.program.drain_interval import DrainInterval
from pipetrain.engine.program.times import TimeSpan
from pipetrain.engine.schedules import Replicas
from pipetrain.engine.schedules.round_robin import RoundRobin
from pipetrain.engine.schedules.sequential import DataParallel

UNEVEN = (2, 3, 1)


def replicated(name, counts, *, scale_lr=True):
    method, schedule = METHODS[name]
    return MethodCase(method, RoundRobin(schedule, Replicas(counts), scale_lr))


def trained(case, stages, *, size=2, N=1, rate=lambda _k: 0.1, **options):
    """A pipeline after an epoch of 48 samples; linear layers, the data in order."""
    torch.manual_seed(0)
    net = nn.Sequential(*[nn.Linear(4, 4) for _ in range(stages)])
    pipe = pipeline(net, range(1, stages), case, N, rate=rate, **options)
    return pipe.train(batches(torch.randn(48, 4), torch.arange(48) % 4, size, N))


def test_whole_model_replicas_equal_larger_minibatch():
    one = trained("sequential", 1, size=8)
    four = trained(MethodCase(METHODS["sequential"].method, RoundRobin(DataParallel(), Replicas((4,)))), 1)
    states = [stage.state() for stage in four.stages]
    assert all(torch.equal(states[0][name], state[name]) for state in states for name in state)
    assert difference(states[0], one.state()) < 1e-6
    assert four.losses[0] == pytest.approx(trained("sequential", 1).losses[0])
    assert len(four.losses) == 24


def test_even_replicas_equal_pipeline_with_larger_minibatch():
    one = trained("gpipe", 2, size=8, clip_norm=0.1)
    both = trained(replicated("gpipe", (2, 2)), 2, size=4, clip_norm=0.1)
    assert difference(both.state(), one.state()) < 1e-6


@pytest.mark.parametrize("name", ["pipedream", "pipeoptim", "pipemare", "i_timeprest"])
@pytest.mark.parametrize("N", [1, 2])
def test_staleness_on_each_replica_is_that_of_the_closed_form(name, N):
    pipe = trained(replicated(name, UNEVEN), 3, size=2, N=N)
    for stage in pipe.stages:
        W, R = sum(UNEVEN[stage.index :]), UNEVEN[stage.index]
        late = (2 * W - 1) // R if name == "pipemare" else (W - 1) // R
        assert stage.report()["forward_staleness"] == [late]
        assert stage.report()["backward_staleness"] == [late if name in ("pipedream", "i_timeprest") else 0]
        assert stage.optimizer.updates == 24


def test_drain_cuts_a_round_short_and_averages_what_there_is():
    """Seven minibatches on three replicas: the last update has the gradient of one."""
    torch.manual_seed(0)
    inputs, targets = torch.randn(14, 4), torch.arange(14) % 4
    case = MethodCase(METHODS["sequential"].method, RoundRobin(DataParallel(), Replicas((3,))))
    ours = pipeline(nn.Sequential(nn.Linear(4, 4)), [], case, rate=lambda _k: 0.1).train(batches(inputs, targets, 2))
    torch.manual_seed(0)
    torch.randn(14, 4)
    plain = pipeline(nn.Sequential(nn.Linear(4, 4)), [], "sequential", rate=lambda _k: 0.1)
    for first, last in ((0, 6), (6, 12), (12, 14)):
        plain.train(batches(inputs[first:last], targets[first:last], last - first))
    assert difference(ours.state(), plain.state()) < 1e-6


def test_learning_rate_scales_with_replicas_relative_to_stage_0():
    rates = []
    pipe = trained(replicated("pipedream", (1, 2)), 2, rate=lambda k: rates.append(k) or 0.1)
    assert [stage.optimizer.scale(0) for stage in pipe.stages] == [1.0, 2.0, 2.0]
    assert max(rates) < 24
    assert {k for k in rates if k % 2} != set()  # stage 0 updates at every minibatch
    assert trained(replicated("pipedream", (1, 2), scale_lr=False), 2).stages[1].optimizer.scale(0) == 1.0


def test_all_replicas_have_buffers_of_first_after_drain():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    pipe = pipeline(net, [2], replicated("gpipe", (2, 1)))
    pipe.train(batches(torch.randn(24, 4), torch.arange(24) % 4, 4))
    first, second = (stage.buffers for stage in pipe.stages[:2])
    assert first["layers.1.child.num_batches_tracked"] == 3
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_gradient_missing_in_some_replicas_counts_as_zero():
    rounds = InProcessAveraging({"a": torch.zeros(2), "b": torch.zeros(2)}, 2)
    this = Round(0, 2)
    rounds.offer(this, 0, RoundGradients({"a": torch.tensor([2.0, 4.0])}))
    assert rounds.take(this) is None
    rounds.offer(this, 1, RoundGradients({}))
    assert {name: g.tolist() for name, g in rounds.take(this).gradients.items()} == {"a": [1.0, 2.0]}


def test_mean_is_summed_in_the_order_of_the_replicas():
    parts = [torch.tensor(value) for value in (1e8, 1.0, -1e8)]
    assert mean_in_first(parts).item() == 0.0  # 1 is lost beside 1e8


@pytest.mark.parametrize("name", ["vertical_sync", "timeprest", "spectrain"])
def test_method_comparing_stage_versions_needs_even_replicas(name):
    trained(replicated(name, (2, 2)), 2)
    with pytest.raises(ConfigError, match=r"partition\.replicas=\[2, 1\].*same replica count"):
        PipelineRules(replicated(name, (2, 1)).schedule, METHODS[name].method, 2, 1)


def test_asynchronous_replica_delay_counts_drained_arrivals():
    method = ASP(replicas=[4], seed=3)
    pipe = trained(MethodCase(method, DataParallel()), 1)
    late, last = set(), {}
    for t in range(24):
        late.add(t - last.get(method.replica(t), 0))
        last[method.replica(t)] = t + 1
    report = pipe.stages[0].report()
    assert report["forward_staleness"] == report["backward_staleness"] == sorted(late)
    assert len(late) > 3
    assert report["weight_versions_max"] <= 5


def test_asynchronous_replicas_equal_handwritten_owner_loop():
    method, net = ASP(replicas=[3], seed=5), nn.Sequential(nn.Linear(4, 4))
    inputs, targets = torch.randn(48, 4), torch.arange(48) % 4
    owner, fetched = copy.deepcopy(net), [copy.deepcopy(net) for _ in range(3)]
    optimizer = sgd(list(owner.parameters()))
    optimizer.param_groups[0]["lr"] = 0.1
    for t, (x, y) in enumerate(zip(inputs.split(2), targets.split(2), strict=True)):
        replica = fetched[method.replica(t)]
        found = torch.autograd.grad(nn.functional.cross_entropy(replica(x), y), list(replica.parameters()))
        for weight, gradient in zip(owner.parameters(), found, strict=True):
            weight.grad = gradient
        optimizer.step()
        replica.load_state_dict(owner.state_dict())
    ours = pipeline(net, [], MethodCase(method, DataParallel()), rate=lambda _k: 0.1)
    assert difference(ours.train(batches(inputs, targets, 2)).stages[0].state(), owner.state_dict()) < 1e-6


def test_asynchronous_replicas_have_mean_staleness_r_minus_1():
    method, last, late = ASP(replicas=[4]), {}, []
    for t in range(4000):
        late.append(t - last.get(method.replica(t), t - 3))
        last[method.replica(t)] = t + 1
    assert math.isclose(sum(late) / len(late), 3, rel_tol=0.1)


def test_asynchronous_replicas_are_predicted_to_run_in_parallel(monkeypatch):
    pipe = pipeline(nn.Sequential(nn.Linear(4, 4)), [], MethodCase(ASP(replicas=[4]), DataParallel()))
    seconds = [TimeSpan(start, 1.0) for start in range(3 * 12)]
    monkeypatch.setattr(pipe.stages[0].clock, "take", lambda: seconds)
    loader = batches(torch.randn(24, 4), torch.arange(24) % 4, 2)
    assert pipe.executor.train(loader, DrainInterval.whole(12)).predicted == [3 / 4] * 12
