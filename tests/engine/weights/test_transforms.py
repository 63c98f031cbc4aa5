"""Weights that are predicted, corrected or scaled when they are read."""

import pytest
import torch
from torch import nn

from pipetrain.engine.optim.stage_optimizer import StageOptimizer
from pipetrain.engine.program.weight_reads import WeightRead
from pipetrain.engine.weights.statistic import UpdateAverage
from pipetrain.engine.weights.transforms import Corrected, Predicted, Scaled
from pipetrain.engine.weights.versions import Weights


def weights_over(build, values, rate=0.1, of_bias=None):
    """`of_bias`: options of a parameter group for the bias."""
    parameters = {name: nn.Parameter(value.clone()) for name, value in values.items()}
    groups = of_bias and [{"params": [parameters["w"]]}, {"params": [parameters["b"]], **of_bias}]
    optimizer = StageOptimizer(build, parameters, lambda _k: rate, groups)
    optimizer.keep_last_gradients(enabled=True)
    return Weights(parameters, optimizer)


VALUES = {"w": torch.linspace(-1, 1, 6, dtype=torch.float64).reshape(2, 3), "b": torch.ones(2, dtype=torch.float64)}
GRADIENT = {name: torch.linspace(0.3, 2, v.numel(), dtype=torch.float64).reshape(v.shape) for name, v in VALUES.items()}


def gradient():
    return {name: value.clone() for name, value in GRADIENT.items()}


def test_prediction_changes_no_weight_and_shares_no_memory():
    weights = weights_over(lambda p: torch.optim.SGD(p, lr=0.0, momentum=0.9), VALUES)
    weights.update(gradient(), keep=False)
    before = {name: value.clone() for name, value in weights.newest.tensors.items()}
    for value in Predicted(2).apply(weights.newest, weights).values():
        value.zero_()
    assert all(torch.equal(weights.newest.tensors[name], before[name]) for name in before)
    delta = Predicted(1).apply(weights.newest, weights)
    torch.testing.assert_close(delta["w"], before["w"] - 0.1 * GRADIENT["w"])


def test_prediction_before_the_first_update_changes_nothing():
    weights = weights_over(lambda p: torch.optim.Adam(p), VALUES)
    assert Predicted(3).apply(weights.newest, weights) == {}


def test_prediction_leaves_a_weight_without_gradients_alone():
    weights = weights_over(lambda p: torch.optim.SGD(p, lr=0.0, momentum=0.9), VALUES)
    weights.update({"w": GRADIENT["w"].clone()}, keep=False)
    assert Predicted(1).apply(weights.newest, weights).keys() == {"w"}


def test_prediction_uses_rate_and_options_of_each_parameter_group():
    of_bias = {"lr_scale": 5.0, "momentum": 0.0, "weight_decay": 0.0}
    weights = weights_over(lambda p: torch.optim.SGD(p, lr=0.0, momentum=0.5, weight_decay=0.1), VALUES, 0.1, of_bias)
    for _ in range(2):
        before = {name: value.clone() for name, value in weights.newest.tensors.items()}
        weights.update(gradient(), keep=False)
    first = GRADIENT["w"] + 0.1 * VALUES["w"]
    deltas = {"w": 0.5 * first + GRADIENT["w"] + 0.1 * before["w"], "b": GRADIENT["b"]}
    for name, rate in (("w", 0.1), ("b", 0.5)):
        torch.testing.assert_close(weights.newest.tensors[name], before[name] - rate * deltas[name])
        expected = weights.newest.tensors[name] - 2 * rate * deltas[name]
        torch.testing.assert_close(Predicted(2).apply(weights.newest, weights)[name], expected)


def test_delta_without_momentum_is_undecayed_last_gradient():
    weights = weights_over(lambda p: torch.optim.SGD(p, lr=0.0, weight_decay=0.5), VALUES)
    weights.update(gradient(), keep=False)
    torch.testing.assert_close(weights.optimizer.deltas()["w"], GRADIENT["w"])


def test_readings_print_the_version_and_what_is_made_of_it():
    made = [None, Predicted(3), Corrected(2), Scaled(0.75)]
    assert [str(WeightRead(1, transform)) for transform in made] == ["v1", "v1+3", "v1-2δ", "v1*0.75"]


@pytest.mark.parametrize("queued", [False, True])
def test_frozen_weights_are_neither_scaled_nor_copied(monkeypatch, queued):
    monkeypatch.setattr("pipetrain.engine.device_queue.queues", lambda _device: queued)
    parameters = {name: nn.Parameter(value.clone()) for name, value in VALUES.items()}
    trained = {"w": parameters["w"]}
    weights = Weights(parameters, StageOptimizer(lambda p: torch.optim.SGD(p, lr=0.0), trained, lambda _k: 0.1))
    read = weights.read(0, Scaled(0.5))
    assert torch.equal(read["w"], 0.5 * VALUES["w"])
    assert torch.equal(read["b"], VALUES["b"])
    assert weights.meter.bytes_peak == 2 * VALUES["w"].nbytes + VALUES["b"].nbytes


@pytest.mark.parametrize("of_bias", [None, {"lr_scale": 0.1}])
def test_device_weights_transform_together_with_equal_bits(monkeypatch, of_bias):
    weights = weights_over(lambda p: torch.optim.Adam(p, lr=0.0), VALUES, of_bias=of_bias)
    weights.statistic = UpdateAverage(0.5, weights.trainable)
    weights.update(gradient(), keep=False)
    transforms = (Predicted(2), Corrected(3), Scaled(0.5))
    expected = [each.apply(weights.newest, weights) for each in transforms]
    monkeypatch.setattr("pipetrain.engine.device_queue.queues", lambda _device: True)
    for transform, before in zip(transforms, expected, strict=True):
        after = transform.apply(weights.newest, weights)
        assert all(torch.equal(after[name], before[name]) for name in VALUES)
        assert all(after[name].data_ptr() != weights.newest.tensors[name].data_ptr() for name in VALUES)
