"""The average of weights against torch's own, and what evaluations read of it."""

import pytest
import torch
from support.methods import METHODS, fitting
from support.pipelines import batches, half_decay, pipeline, sgd, stage_of, unit_gradients
from support.quick_cases import every
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from pipetrain.engine.weights.average import WeightAverage

DECAY = 0.7


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def data():
    torch.manual_seed(5)
    return torch.randn(40, 4), torch.randint(0, 3, (40,))


def trained_plainly(net, loader, epochs):
    """A training loop of torch alone, with torch's average, which starts with the initial weights."""
    averaged = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
    averaged.update_parameters(net)
    optimizer = sgd(list(net.parameters()))
    for k, t in ((e * len(loader) + t, t) for e in range(epochs) for t in range(len(loader))):
        optimizer.param_groups[0]["lr"] = half_decay(k)
        inputs, targets = loader.dataset[8 * t : 8 * (t + 1)]
        nn.functional.cross_entropy(net(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        averaged.update_parameters(net)
    return averaged


@pytest.mark.parametrize("method", ["sequential", "gpipe", "pipedream_flush"])
@pytest.mark.parametrize("cuts", [[], [1, 3]])
def test_averages_have_the_bits_of_a_plain_torch_loop(method, cuts):
    loader = batches(*data(), 8)
    ours = pipeline(model(), cuts, method, average_decay=DECAY).train(loader, 2)
    theirs = trained_plainly(model(), loader, 2)
    averages = {name: tensor for stage in ours.stages for name, tensor in stage.averages.items()}
    expected = dict(theirs.module.named_parameters())
    assert averages.keys() == expected.keys()
    for name, average in averages.items():
        assert torch.equal(average, expected[name]), name
        assert not torch.equal(average, ours.state()[name]), name


@pytest.mark.parametrize("method", every(3, METHODS))
def test_averages_follow_every_update_and_change_no_bit(method):
    N = 1 if fitting(method, 3, 1) else 4
    loader = batches(*data(), 8, N)
    plain = pipeline(model(), [1, 3], method, N).train(loader, 2)
    ours = pipeline(model(), [1, 3], method, N, average_decay=DECAY)
    expected = {name: tensor.clone() for name, tensor in ours.state().items()}
    for stage in ours.stages:
        follow_every_update(stage, expected)
    ours.train(loader, 2)
    assert ours.losses == plain.losses
    for name, tensor in plain.state().items():
        assert torch.equal(ours.state()[name], tensor), name
    for field in ("weight_versions_max", "weight_bytes_peak"):
        assert ours.reports(field) == plain.reports(field)
    for stage in ours.stages:
        for name, average in stage.averages.items():
            torch.testing.assert_close(average, expected[name])


def follow_every_update(stage, expected):
    """Has each update of a stage also change `expected`, by the formula."""
    update = stage.update

    def followed(*arguments, **options):
        update(*arguments, **options)
        for name, weight in stage.state().items():
            expected[name] = DECAY * expected[name] + (1 - DECAY) * weight

    stage.update = followed


def test_evaluation_reads_averages_and_the_newest_buffers():
    stage = stage_of(nn.Linear(3, 3), nn.BatchNorm1d(3), average_decay=DECAY, index=1)
    stage.state()["1.running_mean"].fill_(0.5)
    inputs = torch.randn(4, 3)
    before = {name: tensor.clone() for name, tensor in stage.state().items()}
    stage.update(0, unit_gradients(stage), keep=False, steady=True)
    after = {name: tensor.clone() for name, tensor in stage.state().items()}
    (outputs,) = stage.evaluate((inputs,))
    averaged = {name: torch.lerp(before[name], after[name], 1 - DECAY) for name in stage.averages}
    reference = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).eval()
    reference.load_state_dict({**after, **averaged})
    with torch.no_grad():
        assert torch.equal(outputs, reference(inputs))
    assert all(torch.equal(tensor, after[name]) for name, tensor in stage.state().items())


def test_frozen_weights_have_no_average_and_bytes_are_counted():
    frozen = nn.Linear(3, 3).requires_grad_(requires_grad=False)
    stage = stage_of(frozen, nn.Linear(3, 2), average_decay=DECAY)
    assert sorted(stage.averages) == ["1.bias", "1.weight"]
    assert stage.report()["average_bytes"] == 4 * (3 * 2 + 2)
    assert "average_bytes" not in stage_of(nn.Linear(3, 2)).report()


def test_stage_without_weights_has_no_averages():
    average = WeightAverage(DECAY, {})
    average.follow({})
    assert (average.tensors, average.bytes) == ({}, 0)
