"""Synchronous methods give the same numbers for every D and schedule; clipping reaches as far as the method allows."""

import copy
import functools

import pytest
import torch
from support.methods import ASYNCHRONOUS, STALE_ALONE, SYNCHRONOUS
from support.pipelines import batches, difference, half_decay, pipeline, sgd
from support.quick_cases import every, slow_unless
from torch import nn

from pipetrain.engine.data.minibatches import split
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
def plain(rule, D, N=1, clip_norm=None):
    """The losses, and the weights and buffers, of a run that several tests compare with."""
    pipe = run(rule, D, N, clip_norm=clip_norm)
    return pipe.losses, pipe.state()


def assert_same_bits(pipe, expected):
    assert pipe.losses == expected[0]
    assert difference(pipe.state(), expected[1]) == 0.0


@pytest.mark.parametrize(
    ("D", "N"), slow_unless(lambda D, N: (D, N) in ((3, 4), (5, 1)), [(1, 4), (2, 1), (3, 4), (5, 1), (5, 4)])
)
@pytest.mark.parametrize("rule", SYNCHRONOUS)
def test_synchronous_methods_agree_for_all_stages_and_schedules(rule, D, N):
    one, several = plain("sequential", 1, N), plain(rule, D, N)
    assert several[0] == pytest.approx(one[0], rel=1e-6)
    assert difference(several[1], one[1]) < 1e-6


@pytest.mark.parametrize("N", [1, 2])
def test_one_stage_equals_plain_torch_training(N):
    chain, plain, (x, y) = model(), model(), data()
    for module in (*chain.module.modules(), *plain.module.modules()):
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    optimizer, losses = sgd(list(plain.module.parameters())), []
    for _ in range(EPOCHS):
        for xs, ys in zip(x.split(BATCH), y.split(BATCH), strict=True):
            optimizer.param_groups[0]["lr"] = half_decay(len(losses))
            optimizer.zero_grad()
            parts = [
                nn.functional.cross_entropy(plain(inputs), targets) * (len(targets) / len(ys))
                for inputs, targets in split((xs, ys), N)
            ]
            for part in parts:
                part.backward()
            optimizer.step()
            losses.append(sum(part.item() for part in parts))
    pipe = pipeline(chain, [], "sequential", N)
    pipe.train(batches(x, y, BATCH, N), EPOCHS)
    assert pipe.losses == pytest.approx(losses, rel=1e-5)
    assert difference(pipe.state(), dict(plain.module.state_dict())) < 1e-5


def test_another_seed_changes_the_weights_through_dropout():
    other = pipeline(model(), CUTS[2], "gpipe", seed=6).train(batches(*data(), BATCH), EPOCHS)
    assert difference(plain("gpipe", 2)[1], other.state()) > 1e-4


@pytest.mark.parametrize("rule", every(2, ASYNCHRONOUS))
def test_asynchronous_methods_on_one_stage_equal_plain_training(rule):
    found = difference(run(rule, 1, 2).state(), plain("sequential", 1, 2)[1])
    assert found > 1e-4 if rule in STALE_ALONE else found < 1e-6


@pytest.mark.parametrize("rule", every(2, ASYNCHRONOUS))
def test_asynchronous_methods_on_several_stages_differ(rule):
    N = 3 if rule == "pipedream_2bw" else 1
    assert difference(plain(rule, 3, N)[1], plain("sequential", 1, N)[1]) > 1e-4


@pytest.mark.parametrize(("D", "N"), [(3, 4), pytest.param(4, 1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("rule", [*SYNCHRONOUS, *STASHING])
def test_recomputation_with_forward_weights_keeps_all_bits(rule, D, N):
    N = max(N, D) if rule == "pipedream_2bw" else N
    assert_same_bits(run(rule, D, N, recompute=range(D)), plain(rule, D, N))


@pytest.mark.parametrize("firsts", [(0,), (0, 2), pytest.param((0, 3), marks=pytest.mark.slow)])
@pytest.mark.parametrize("rule", [*SYNCHRONOUS, "pipedream_pipemare"])
def test_recomputation_by_multistage_segments_keeps_all_bits(rule, firsts):
    assert_same_bits(run(rule, 4, 2, recompute=firsts), plain(rule, 4, 2))


@pytest.mark.parametrize("rule", ["naive_async", "pipemare", "v_timeprest"])
def test_recomputation_updates_buffers_once_per_forward(rule):
    found, expected = run(rule, 3, 2, recompute=(0, 1, 2)).state(), plain(rule, 3, 2)[1]
    seen = {name: value for name, value in found.items() if name.endswith("num_batches_tracked")}
    assert set(map(int, seen.values())) == {2 * 3 * EPOCHS}
    assert all(torch.equal(expected[name], value) for name, value in seen.items())
    assert difference(found, expected) > 1e-6


@pytest.mark.parametrize("rule", SYNCHRONOUS)
def test_synchronous_clipping_is_over_the_whole_model(rule):
    state = run(rule, 4, 2, clip_norm=0.2).state()
    assert difference(state, plain("sequential", 1, 2, clip_norm=0.2)[1]) < 1e-6
    assert difference(state, plain(rule, 4, 2)[1]) > 1e-3


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
    pipe.train(batches(x[:BATCH], y[:BATCH], BATCH, microbatches))
    return seen


def norm_of(gradients):
    return torch.stack([value.norm() for value in gradients.values()]).norm().item()


@pytest.mark.parametrize("rule", every(2, ASYNCHRONOUS))
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


@pytest.mark.parametrize(
    ("rule", "recompute"),
    every(2, [*((rule, (0, 1, 2)) for rule in ("gpipe", *ASYNCHRONOUS)), ("gpipe", None), ("pipeoptim", None)]),
)
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
