"""Gradients of microbatches add up in memory that nothing else shares."""

import contextlib
import functools

import pytest
import torch
from support.pipelines import Function, batches, newest, pipeline, stage_of, step
from torch import nn
from torch.utils.checkpoint import checkpoint

from pipetrain.engine.arithmetic import ComputeOptions
from pipetrain.engine.device_queue import numbers
from pipetrain.engine.errors import RunError
from pipetrain.engine.executors.hooks import RunHooks
from pipetrain.engine.program.planned_operations import Activations
from pipetrain.engine.stage.gradients import LossScaler


def test_microbatch_gradients_add_up_and_are_returned_once():
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


def test_aliased_gradients_are_never_written_in_place():
    stage = stage_of(TwoBiases(), index=1)
    incoming = [torch.full((3,), float(j + 1)) for j in range(3)]
    returned = [step(stage, (torch.zeros(3),), (g,), (0, j))[1][0] for j, g in enumerate(incoming)]
    gradients = stage.gradients.take()
    assert [g.tolist() for g in incoming] == [[j + 1.0] * 3 for j in range(3)]
    assert [g.tolist() for g in returned] == [[j + 1.0] * 3 for j in range(3)]
    assert [g.tolist() for g in gradients.values()] == [[6.0] * 3] * 2


def storages(tensors):
    return [tensor.untyped_storage().data_ptr() for tensor in tensors]


class Joined(nn.Module):
    """cat(a, b) + c: the gradients of a and b are views of c's, b's at an offset."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Parameter(torch.zeros(size)) for size in (2, 2, 4))

    def forward(self, x):
        return x + torch.cat([self.a, self.b]) + self.c


@pytest.mark.parametrize(("module", "width", "count"), [(TwoBiases, 3, 2), (Joined, 4, 3)])
def test_optimizer_writing_into_gradient_changes_nothing_else(module, width, count):
    stage, g = stage_of(module(), index=1), torch.ones(width)
    _, (dx,) = step(stage, (torch.zeros(width),), (g,))
    gradients = list(stage.gradients.take().values())
    assert len(set(storages(gradients))) == count
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


def told_in(stage, minibatches):
    """What was told of in each minibatch, by weight, beside the sums after it."""
    told = [{} for _ in range(minibatches)]
    for t, each in enumerate(told):
        stage.on_gradient_ready = lambda name, gradient, each=each: each.update({name: gradient.clone()})
        stage.forward((t, 0), (torch.randn(2, 3),), newest(stage), Activations.KEPT, store=False)
        stage.backward([(t, 0)], (torch.ones(2, 3),), newest(stage))
        sums = stage.gradients.take()
        assert all(torch.equal(sums[name], gradient) for name, gradient in each.items())
    return [sorted(each) for each in told]


def checkpointed_twice(linear, x):
    return checkpoint(linear, checkpoint(linear, x, use_reentrant=True), use_reentrant=True)


def test_whole_gradients_are_announced_from_second_minibatch():
    weights = ["layers.0.bias", "layers.0.weight"]
    assert told_in(stage_of(nn.Linear(3, 3), index=1), 3) == [[], weights, weights]


def test_layer_checkpointing_in_parts_announces_nothing():
    assert told_in(stage_of(Function(checkpointed_twice, nn.Linear(3, 3)), index=1), 3) == [[], [], []]


def test_weight_added_to_twice_in_later_minibatch_is_refused():
    uses = iter([lambda linear, x: linear(x), checkpointed_twice])
    stage = stage_of(Function(lambda linear, x: next(uses)(linear, x), nn.Linear(3, 3)), index=1)
    with pytest.raises(RuntimeError, match=r"0\.parts\.0\.\w+: .*use_reentrant=False"):
        told_in(stage, 2)


FINE, WRONG = torch.tensor(4.0), torch.tensor(float("nan"))


def test_factor_is_halved_if_one_stage_gradient_is_not_finite():
    scaler = LossScaler()
    assert scaler.passes([FINE, FINE])
    assert not scaler.passes([FINE, WRONG])
    assert not scaler.passes([torch.tensor(float("inf"))])
    assert (scaler.scale, scaler.skipped) == (2.0**14, 2)


def test_factor_is_doubled_after_two_thousand_updates_in_a_row():
    scaler = LossScaler()
    scaler.passes([WRONG])
    for _ in range(1999):
        scaler.passes([FINE])
    assert scaler.scale == 2.0**15
    again = LossScaler()
    again.load_state(scaler.state())
    again.passes([FINE])
    assert (again.scale, again.skipped) == (2.0**16, 1)


def test_run_ends_when_gradients_stay_infinite_however_they_are_scaled():
    scaler = LossScaler()
    with pytest.raises(RunError, match=r"train.precision=fp16: .* now by 5.42101e-20; .*bf16"):
        [scaler.passes([WRONG]) for _ in range(100)]
    assert scaler.skipped == 80


def test_asynchronous_stage_without_weights_scales_less_when_it_sends_infinite_gradients():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), Function(lambda x: x * 100.0))
    loader = batches(torch.randn(4 * 20, 4), torch.arange(4 * 20) % 4, 4)
    pipe = pipeline(model, [1, 2], "pipedream", rate=lambda _k: 1e-6, arithmetic=ComputeOptions("fp16")).train(loader)
    first, second, last = pipe.reports("skipped_updates")
    assert 0 < last < 10
    assert max(first, second) < 15
    assert pipe.reports("loss_scale")[2] < 2.0**16


def trained(case, factors=None, precision="fp16", **options):
    """Four steps of three stages."""
    torch.manual_seed(0)
    net = nn.Sequential(*[nn.Linear(4, 4) for _ in range(3)])
    pipe = pipeline(net, [1, 2], case, 2, arithmetic=ComputeOptions(precision), **options)
    for stage, factor in zip(pipe.stages, factors or (), strict=False):
        stage.scaler.scale = factor
    before = pipe.state()
    return before, pipe.train(batches(torch.randn(16, 4), torch.arange(16) % 4, 4, 2))


def test_synchronous_method_skips_step_on_all_stages():
    before, pipe = trained("gpipe", [2.0**40] * 3)  # beyond float16 for more than four steps
    assert all(torch.equal(before[name], tensor) for name, tensor in pipe.state().items())
    assert pipe.reports("skipped_updates") == [4, 4, 4]
    assert pipe.reports("loss_scale") == [2.0**36] * 3
    assert [stage.updates for stage in pipe.stages] == [4, 4, 4]


def test_asynchronous_stage_changes_its_own_factor_only():
    _, pipe = trained("pipedream", [2.0**40, 2.0**16, 2.0**10])
    assert pipe.reports("skipped_updates") == [4, 0, 0]
    assert pipe.reports("loss_scale") == [2.0**36, 2.0**16, 2.0**10]


def test_factors_of_two_change_no_gradient_that_float16_can_hold():
    ends = [trained("pipedream", factors)[1].state() for factors in ([64.0] * 3, [256.0, 64.0, 128.0])]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_scaled_gradients_are_clipped_as_plain_ones():
    _, scaled = trained("gpipe", clip_norm=0.1)
    _, plain = trained("gpipe", clip_norm=0.1, precision="fp32")
    for name, tensor in plain.state().items():
        torch.testing.assert_close(scaled.state()[name], tensor, rtol=2e-3, atol=2e-4)


def test_device_factors_are_exchanged_without_sync(monkeypatch):
    factors = [2.0**20, 64.0, 2.0**3]  # whose quotients float16 may not hold
    _, expected = trained("pipedream", factors)
    monkeypatch.setattr("pipetrain.engine.stage.stage.queues", lambda _device: True)
    _, found = trained("pipedream", factors)
    assert all(torch.equal(found.state()[name], tensor) for name, tensor in expected.state().items())


@pytest.mark.parametrize("case", ["gpipe", "pipedream"])
def test_norms_are_read_once_per_update_as_watchdog_wait(monkeypatch, case):
    events = []

    @contextlib.contextmanager
    def waiting(what):
        events.append(what)
        yield
        events.append("done")

    def read(scalars):
        events.append("read")
        return numbers(scalars)

    monkeypatch.setattr("support.pipelines.RunHooks", functools.partial(RunHooks, waiting=waiting))
    monkeypatch.setattr("pipetrain.engine.executors.stage_runner.numbers", read)
    monkeypatch.setattr("pipetrain.engine.stage.gradients.numbers", lambda norms: [norm.item() for norm in norms])
    _, pipe = trained(case, clip_norm=0.1)
    updates = sum(stage.updates for stage in pipe.stages)
    assert events == ["its device", "read", "done"] * updates
