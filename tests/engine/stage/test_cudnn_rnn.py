"""Recurrent layers that compute with a packed copy of their weights, as cuDNN does; here a stand-in packs them."""

import pytest
import torch
from support.pipelines import stage_of
from torch import nn

from pipetrain.engine.arithmetic import ComputeOptions
from pipetrain.engine.stage import cudnn_rnn
from pipetrain.engine.stage.module import StageModule
from pipetrain.engine.stage.saved_tensors import SavedTensors

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


class Packing(torch.autograd.Function):
    """x times the sum of all weights, which it packs and saves as cuDNN's recurrent layers do."""

    @staticmethod
    def forward(ctx, x, count, *weights):
        copy = torch.cat([weight.flatten() for weight in weights])
        ctx.count = count
        ctx.save_for_backward(x, copy, *weights)
        return x * copy.sum()

    @staticmethod
    def backward(ctx, gradient):
        x, copy, *weights = ctx.saved_tensors
        return gradient * copy.sum(), None, *((gradient * x).sum().expand_as(weight) for weight in weights)


class PackingLSTM(nn.LSTM):
    def forward(self, x):
        self._update_flat_weights()
        return Packing.apply(x, len(self._flat_weights), *self._flat_weights)


def flatten(calls):
    """Stands for torch._cudnn_rnn_flatten_weight, which points the weights to the copy that it returns."""

    def flattened(weights, *options):
        calls.append(options)
        copy = torch.cat([weight.flatten() for weight in weights])
        for weight, part in zip(weights, copy.split([weight.numel() for weight in weights]), strict=True):
            weight.set_(part.view_as(weight))
        return copy

    return flattened


@pytest.fixture
def calls(monkeypatch):
    """What the layers were packed anew with."""
    calls = []
    monkeypatch.setattr(torch, "_cudnn_rnn_flatten_weight", flatten(calls))
    monkeypatch.setattr(cudnn_rnn.rnn.m, "get_cudnn_mode", lambda mode: mode)
    return calls


def weights_of(module, value):
    return {name: torch.full_like(parameter, value) for name, parameter in module.named_parameters()}


def forward(layer, weights, x):
    """The output, and what the forward saved."""
    module = StageModule([layer], 0, 0)
    saved = SavedTensors(weights)
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in weights.items()}
    with saved.hooks(), module.using_weights(leaves), cudnn_rnn.tracking_forwards(module._recurrent):
        (output,) = module(x, microbatch=(0, 0))
    return output, saved


def gradient_of_input(layer, forward_value, backward_value):
    module, x = StageModule([layer], 0, 0), torch.ones(2, 3, requires_grad=True)
    output, saved = forward(layer, weights_of(module, forward_value), x)
    saved.backward_weights = weights_of(module, backward_value)
    before = {name: (tensor.clone(), tensor._version) for name, tensor in saved.backward_weights.items()}
    (found,) = torch.autograd.grad(output.sum(), x)
    for name, (values, version) in before.items():
        after = saved.backward_weights[name]
        assert torch.equal(after, values)
        assert after._version == version
    return found


@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True, "proj_size": 2}, {"bias": False}])
def test_packed_copy_is_rebuilt_from_backward_weights(calls, options):
    layer = PackingLSTM(3, 4, **options)
    number = sum(parameter.numel() for parameter in layer.parameters())
    assert torch.equal(gradient_of_input(layer, 1.0, 2.0), torch.full((2, 3), 2.0 * number))
    assert calls == [
        (
            (4 if layer.bias else 2) + (layer.proj_size > 0), 3, "LSTM", 4, layer.proj_size, layer.num_layers, False,
            layer.bidirectional,
        )
    ]  # fmt: skip


@pytest.mark.usefixtures("calls")
def test_packed_copy_is_not_kept_until_the_backward():
    layer, x = PackingLSTM(3, 4), torch.ones(2, 3)
    _, saved = forward(layer, dict(StageModule([layer], 0, 0).named_parameters()), x)
    assert saved.activation_bytes([x]) == (0, x.nbytes)


def test_packed_copy_of_other_size_than_forward_is_an_error(calls, monkeypatch):
    monkeypatch.setattr(torch, "_cudnn_rnn_flatten_weight", lambda *_: torch.zeros(7))
    with pytest.raises(RuntimeError, match="packs its weights into 7 numbers, and its forward saved 144"):
        gradient_of_input(PackingLSTM(3, 4), 1.0, 2.0)
    assert not calls


def test_layer_is_active_only_in_its_forward_even_if_it_fails():
    layer, seen = nn.LSTM(3, 4), []
    net = nn.Sequential(layer)
    layer.register_forward_hook(lambda *_: seen.append(cudnn_rnn.running_layer()))
    with cudnn_rnn.tracking_forwards([layer]):
        net(torch.zeros(2, 3))
        assert cudnn_rnn.running_layer() is None
        with pytest.raises(RuntimeError):
            net(torch.zeros(2, 5))
        assert cudnn_rnn.running_layer() is None
    net(torch.zeros(2, 3))
    assert seen == [layer, None]
    assert len(layer._forward_pre_hooks) == 0


@pytest.fixture
def users_switches(monkeypatch):
    for name, value in {"benchmark": True, "deterministic": True, "allow_tf32": False}.items():
        monkeypatch.setattr(torch.backends.cudnn, name, value)


def switches():
    return tuple(
        getattr(torch.backends.cudnn, name) for name in ("enabled", "benchmark", "deterministic", "allow_tf32")
    )


@pytest.mark.usefixtures("users_switches")
def test_layers_without_cudnn_leave_others_and_switches_alone():
    layer, other, seen = nn.GRU(3, 4), nn.Linear(3, 3), []
    for each in (layer, other):
        each.register_forward_hook(lambda *_: seen.append(switches()))
    with cudnn_rnn.without_cudnn([layer]):
        layer(other(torch.zeros(2, 3)))
    assert seen == [(True, True, True, False), (False, True, True, False)]
    assert switches() == (True, True, True, False)


@pytest.mark.parametrize(
    ("device", "arithmetic", "expected"),
    [
        (CPU, ComputeOptions("bf16"), (True, False)),
        (CUDA, ComputeOptions(), (True, True)),
        (CUDA, ComputeOptions("bf16"), (False, False)),
        (CUDA, ComputeOptions("fp16"), (False, False)),
    ],
)
def test_cudnn_is_left_out_only_under_mixed_precision_on_cuda(monkeypatch, device, arithmetic, expected):
    monkeypatch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    layer, seen = nn.LSTM(3, 4), []
    layer.register_forward_hook(
        lambda *_: seen.append((torch.backends.cudnn.enabled, cudnn_rnn.running_layer() is layer))
    )
    module = StageModule([layer], 0, 0, arithmetic)
    module.device = device
    with module.using_weights(dict(module.named_parameters()), rebound=True), arithmetic.computing(device):
        layer(torch.zeros(2, 3))
        with pytest.raises(RuntimeError):
            layer(torch.zeros(2, 5))
    assert seen == [expected]
    assert torch.backends.cudnn.enabled


def test_module_holds_the_weights_that_moving_to_its_device_left():
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        stage = stage_of(nn.Linear(3, 2), nn.BatchNorm1d(2), device=torch.device("meta"))
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)
    moved = dict(stage.module.named_parameters())
    assert {weight.device.type for weight in moved.values()} == {"meta"}
    with stage.module.using_weights({name: weight.detach() for name, weight in moved.items()}, rebound=False):
        pass
    assert all(moved[name] is weight for name, weight in stage.module.named_parameters())
