"""Synchronous methods give the same numbers for every D and schedule; clipping reaches as far as the method allows."""

import copy
import functools

import pytest
import torch
from support.methods import ASYNCHRONOUS, STALE_ALONE, SYNCHRONOUS
from support.pipelines import batches, difference, half_decay, pipeline, sgd
from torch import nn

from pipetrain.engine.data.loader import split
from pipetrain.engine.models.chain import LayerChain

STASHING = ("pipedream", "vertical_sync", "pipedream_2bw", "pipedream_pipemare", "i_timeprest")
SAMPLES, BATCH, EPOCHS = 22, 8, 2  # minibatches of 8, 8 and 6


class Opens(nn.Module):
    """The first half of a residual block: its input goes on beside its output."""

    def __init__(self, width):
        super().__init__()
        self.conv, self.norm, self.drop = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.Dropout(0.2)

    def forward(self, x):
        return self.drop(torch.relu(self.norm(self.conv(x)))), x


class Closes(nn.Module):
    """The second half, which adds what was relayed."""

    def __init__(self, width):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)

    def forward(self, x, skip):
        return torch.relu(self.norm(self.conv(x)) + skip)


class Recurrent(nn.Module):
    """Rows of the image as a sequence; the output of the LSTM is not contiguous."""

    def __init__(self, width, hidden):
        super().__init__()
        self.lstm = nn.LSTM(width, hidden)

    def forward(self, x):
        return self.lstm(x.mean(3).permute(2, 0, 1))[0].transpose(0, 1)


class Head(nn.Module):
    def __init__(self, hidden, classes):
        super().__init__()
        self.drop, self.linear = nn.Dropout(0.1), nn.Linear(hidden, classes)

    def forward(self, x):
        return self.linear(self.drop(x).mean(1))


CUTS = {
    1: [],
    2: [2],
    3: [2, 5],
    4: [2, 4, 6],
    5: [1, 2, 4, 6],
}  # 2 and 4 lie inside a residual block, 6 behind the LSTM


def model():
    torch.manual_seed(1)
    layers = [nn.Conv2d(1, 4, 3, padding=1), Opens(4), Closes(4), Opens(4), Closes(4), Recurrent(4, 5), Head(5, 3)]
    return LayerChain(nn.Sequential(*layers), layers)


def data():
    torch.manual_seed(2)
    return torch.randn(SAMPLES, 1, 6, 6), torch.randint(0, 3, (SAMPLES,))


def run(rule, D, N=1, **settings):
    x, y = data()
    pipe = pipeline(model(), CUTS[D], rule, N, seed=5, **settings)
    pipe.train(batches(x, y, BATCH, N), EPOCHS)
    return pipe


@functools.cache
def plainly_trained(N):
    """Without a pipeline; the losses, and the weights and buffers."""
    pipe = run("sequential", 1, N)
    return pipe.losses, pipe.state()


@pytest.mark.parametrize("N", [1, 4])
@pytest.mark.parametrize("D", [1, 2, 3, 5])
@pytest.mark.parametrize("rule", SYNCHRONOUS)
def test_synchronous_methods_agree_for_all_stages_and_schedules(rule, D, N):
    (losses, state), pipe = plainly_trained(N), run(rule, D, N)
    assert pipe.losses == pytest.approx(losses, rel=1e-6)
    assert difference(pipe.state(), state) < 1e-6


@pytest.mark.parametrize("N", [1, 2])
def test_one_stage_equals_plain_torch_training(N):
    chain, (x, y) = model(), data()
    for module in chain.module.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    plain = model().module
    plain.load_state_dict(chain.module.state_dict())
    layers = list(plain)
    for module in plain.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    optimizer, losses = sgd(list(plain.parameters())), []
    for _ in range(EPOCHS):
        for xs, ys in zip(x.split(BATCH), y.split(BATCH), strict=True):
            optimizer.param_groups[0]["lr"] = half_decay(len(losses))
            optimizer.zero_grad()
            total = 0.0
            for inputs, targets in split((xs, ys), N):
                value = (inputs,)
                for layer in layers:
                    result = layer(*value)
                    value = result if isinstance(result, tuple) else (result,)
                loss = nn.functional.cross_entropy(value[0], targets) * (len(targets) / len(ys))
                loss.backward()
                total += loss.item()
            optimizer.step()
            losses.append(total)
    pipe = pipeline(chain, [], "sequential", N)
    pipe.train(batches(x, y, BATCH, N), EPOCHS)
    assert pipe.losses == pytest.approx(losses, rel=1e-5)
    assert difference(pipe.state(), dict(plain.state_dict())) < 1e-5


def test_another_seed_changes_the_weights_through_dropout():
    x, y = data()
    first, other = (
        pipeline(model(), CUTS[2], "gpipe", seed=seed).train(batches(x, y, BATCH), EPOCHS) for seed in (5, 6)
    )
    assert difference(first.state(), other.state()) > 1e-4


@pytest.mark.parametrize("rule", ASYNCHRONOUS)
def test_asynchronous_methods_on_one_stage_equal_plain_training(rule):
    found = difference(run(rule, 1, 2).state(), plainly_trained(2)[1])
    assert found > 1e-4 if rule in STALE_ALONE else found < 1e-6


@pytest.mark.parametrize("rule", ASYNCHRONOUS)
def test_asynchronous_methods_on_several_stages_differ(rule):
    N = 3 if rule == "pipedream_2bw" else 1
    assert difference(run(rule, 3, N).state(), plainly_trained(N)[1]) > 1e-4


@pytest.mark.parametrize(("D", "N"), [(3, 4), (4, 1)])
@pytest.mark.parametrize("rule", [*SYNCHRONOUS, *STASHING])
def test_recomputation_with_forward_weights_keeps_all_bits(rule, D, N):
    N = max(N, D) if rule == "pipedream_2bw" else N
    plain, pipe = run(rule, D, N), run(rule, D, N, recompute=range(D))
    assert pipe.losses == plain.losses
    assert difference(pipe.state(), plain.state()) == 0.0


@pytest.mark.parametrize("firsts", [(0,), (0, 2), (0, 3)])
@pytest.mark.parametrize("rule", [*SYNCHRONOUS, "pipedream_pipemare"])
def test_recomputation_by_multistage_segments_keeps_all_bits(rule, firsts):
    plain, pipe = run(rule, 4, 2), run(rule, 4, 2, recompute=firsts)
    assert pipe.losses == plain.losses
    assert difference(pipe.state(), plain.state()) == 0.0


@pytest.mark.parametrize("rule", ["naive_async", "pipemare", "spectrain", "v_timeprest"])
def test_recomputation_updates_buffers_once_per_forward(rule):
    plain, pipe = run(rule, 3, 2), run(rule, 3, 2, recompute=(0, 1, 2))
    seen = {name: value for name, value in pipe.state().items() if name.endswith("num_batches_tracked")}
    assert set(map(int, seen.values())) == {2 * 3 * EPOCHS}
    assert all(torch.equal(plain.state()[name], value) for name, value in seen.items())
    assert difference(pipe.state(), plain.state()) > 1e-6


@pytest.mark.parametrize("D", [2, 4])
@pytest.mark.parametrize("rule", SYNCHRONOUS)
def test_synchronous_clipping_is_over_the_whole_model(rule, D):
    limit = 0.2
    reference, pipe = run("sequential", 1, 2, clip_norm=limit), run(rule, D, 2, clip_norm=limit)
    assert difference(pipe.state(), reference.state()) < 1e-6
    assert difference(pipe.state(), run(rule, D, 2).state()) > 1e-3


def first_update(pipe, microbatches=1):
    """The gradients that the first update of each stage was given, by stage."""
    seen = {}
    for stage in pipe.stages:
        original = stage.update

        def spy(minibatch, gradients, *, keep, steady, stage=stage, original=original):
            seen.setdefault(stage.index, {name: value.clone() for name, value in gradients.items()})
            original(minibatch, gradients, keep=keep, steady=steady)

        stage.update = spy
    x, y = data()
    pipe.train(batches(x, y, BATCH, microbatches))
    return seen


def norm_of(gradients):
    return torch.stack([value.norm() for value in gradients.values()]).norm().item()


def test_whole_model_clipping_equals_torch_clip_grad_norm():
    limit = 0.05
    unclipped = first_update(pipeline(model(), CUTS[3], "gpipe"))
    whole = [nn.Parameter(value) for r in range(3) for value in unclipped[r].values()]
    for parameter in whole:
        parameter.grad = parameter.detach().clone()
    total = nn.utils.clip_grad_norm_(whole, limit)
    assert total > limit
    ours = first_update(pipeline(model(), CUTS[3], "gpipe", clip_norm=limit))
    found = [value for r in range(3) for value in ours[r].values()]
    for value, parameter in zip(found, whole, strict=True):
        torch.testing.assert_close(value, parameter.grad, rtol=1e-5, atol=1e-8)
    assert norm_of({str(i): value for i, value in enumerate(found)}) == pytest.approx(limit, rel=1e-4)


@pytest.mark.parametrize("rule", ASYNCHRONOUS)
def test_asynchronous_clipping_is_per_stage(rule):
    limit, N = 0.02, 3 if rule == "pipedream_2bw" else 1
    unclipped = first_update(pipeline(model(), CUTS[3], rule, N), N)
    ours = first_update(pipeline(model(), CUTS[3], rule, N, clip_norm=limit), N)
    for r, gradients in unclipped.items():
        assert norm_of(gradients) > limit
        assert norm_of(ours[r]) == pytest.approx(limit, rel=1e-4)
        scale = limit / (norm_of(gradients) + 1e-6)
        for name, value in gradients.items():
            torch.testing.assert_close(ours[r][name], value * scale, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("rule", ["gpipe", "pipeoptim"])
def test_clipping_leaves_gradients_within_the_limit_unchanged(rule):
    assert difference(run(rule, 3, clip_norm=1e6).state(), run(rule, 3).state()) == 0.0


@pytest.mark.parametrize("recompute", [None, (0, 1, 2)])
@pytest.mark.parametrize("rule", ["gpipe", *ASYNCHRONOUS])
def test_stage_without_weights_trains_and_clips(rule, recompute):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))
    x, y = torch.randn(32, 4), torch.arange(32) % 3
    pipe = pipeline(net, [1, 2], rule, 4, clip_norm=0.1, recompute=recompute).train(batches(x, y, 4, 4))
    assert len(pipe.losses) == 8


@pytest.mark.parametrize("rule", ["pipemare", "spectrain", "i_timeprest", "pipedream_2bw"])
def test_frozen_weights_stay_under_weight_transforms(rule):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))
    net[2].requires_grad_(requires_grad=False)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    x, y = torch.randn(32, 4), torch.arange(32) % 3
    state = pipeline(net, [2, 4], rule, 4).train(batches(x, y, 4, 4)).state()
    assert {name for name in before if not torch.equal(before[name], state[name])} == before.keys() - {
        "2.weight",
        "2.bias",
    }


@pytest.mark.parametrize("rule", ["gpipe", "pipeoptim"])
def test_minibatches_are_numbered_across_drains(rule):
    pipe = pipeline(model(), CUTS[3], rule, 2)
    seen = [[] for _ in pipe.stages]
    for stage in pipe.stages:
        original = stage.module.forward

        def spy(*tensors, microbatch, place=seen[stage.index], original=original):
            place.append(microbatch)
            return original(*tensors, microbatch=microbatch)

        stage.module.forward = spy
    x, y = data()
    pipe.train(batches(x, y, BATCH, 2), EPOCHS)
    assert seen == [[(t, j) for t in range(6) for j in range(2)]] * 3


@pytest.mark.parametrize(("rule", "cuts"), [("sequential", []), ("gpipe", [2]), ("pipedream_flush", [1, 2, 3])])
def test_microbatches_have_bits_of_plain_gradient_accumulation(rule, cuts):
    torch.manual_seed(3)
    net = nn.Sequential(*[nn.Linear(5, 5) for _ in range(4)])
    x, y = torch.randn(48, 5), torch.arange(48) % 5
    ours = pipeline(copy.deepcopy(net), cuts, rule, 4, sgd).train(batches(x, y, 16, 4))
    optimizer, losses = sgd(list(net.parameters())), []
    for xs, ys in zip(x.split(16), y.split(16), strict=True):
        optimizer.param_groups[0]["lr"] = half_decay(len(losses))
        parts = [nn.functional.cross_entropy(net(a), b) / 4 for a, b in zip(xs.split(4), ys.split(4), strict=True)]
        optimizer.zero_grad()
        for part in parts:
            part.backward()
        optimizer.step()
        losses.append(sum(part.detach() for part in parts).item())
    assert ours.losses == losses
    assert all(torch.equal(ours.state()[name], value) for name, value in net.state_dict().items())
