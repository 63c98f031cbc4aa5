"""The split backward: the bits of a whole one, whatever the layers; what stays whole; memory between B and W."""

from typing import NamedTuple

import pytest
import torch
from support.pipelines import Function, newest, stage_of, step, unit_gradients
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pipetrain.engine.arithmetic import ComputeOptions
from pipetrain.engine.program.planned_operations import Activations


class Results(NamedTuple):
    """Outputs and gradients of all minibatches, and the weights whose gradients the last B left to W."""

    tensors: list[Tensor]
    left: set[str]


def run(layers, inputs, *, splits, index=1, N=1, lag=1, activations=Activations.KEPT, **options):
    """Three minibatches of one stage; each W is `lag` backwards behind its B."""
    torch.manual_seed(0)
    stage = stage_of(*layers(), index=index, **options)
    stage.splits_backward = splits
    tensors, left = [], set()
    for t in range(3):
        outputs = []
        for j in range(N):
            stores = activations is Activations.DROPPED
            outputs += stage.forward((t, j), (inputs(),), newest(stage), activations, store=stores)
        if activations is Activations.REBOUND:  # B and W read other weights than F
            stage.update(t, unit_gradients(stage), keep=False, steady=True)
        read = newest(stage)
        for j in range(N + lag):
            if j < N and activations is Activations.DROPPED:
                stage.recompute((t, j), None, read, Activations.KEPT)
            if j < N:
                gradient = torch.randn(outputs[j].shape)
                scale = () if stage.scaler is None else (torch.full((), stage.scaler.scale),)
                tensors += stage.backward([(t, j)], (gradient, *scale), read)
                left = stage.weights.trainable.keys() - stage.gradients.tensors.keys()
            if splits and j >= lag:
                stage.weight_gradient((t, j - lag), read)
        stage.complete_gradients()
        gradients = stage.gradients.take()
        tensors += [*outputs, *(each.clone() for each in gradients.values())]
        assert [*gradients] == [name for name in stage.weights.trainable if name in gradients]
        stage.update(t, gradients, keep=False, steady=True)
    return Results([*tensors, *stage.state().values()], {stage.full_names[name] for name in left})


def assert_equal_bits(layers, inputs, **options):
    whole, split = (run(layers, inputs, splits=splits, **options) for splits in (False, True))
    assert len(whole.tensors) == len(split.tensors)
    assert all(map(torch.equal, whole.tensors, split.tensors))
    return split.left


def floats():
    return torch.randn(6, 8)


def pictures():
    return torch.randn(2, 3, 6, 6)


def words():
    return torch.randint(0, 9, (4, 5))


def sentences():
    return torch.randn(4, 5, 8)


class Block(nn.Module):
    """Convolutions with a shortcut, and activations in place."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1, groups=2, bias=False)
        self.norm, self.relu = nn.BatchNorm2d(4), nn.ReLU(inplace=True)

    def forward(self, x):
        return self.relu(self.second(self.relu(self.norm(self.first(x)))) + x)


class Product(nn.Module):
    """A layer of one operation, which says that its backward may split."""

    splits_backward = True

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))

    def forward(self, x):
        return torch.matmul(x, self.weight)


class Whole(nn.Sequential):
    splits_backward = False


class Tied(nn.Module):
    """An embedding whose weight scores words, too."""

    def __init__(self):
        super().__init__()
        self.embedding, self.hidden = nn.Embedding(9, 8), nn.Linear(8, 8)

    def forward(self, ids):
        return nn.functional.linear(torch.tanh(self.hidden(self.embedding(ids))), self.embedding.weight)


def twin_layers():
    first, second = nn.Linear(8, 8), nn.Linear(8, 8)
    second.weight = first.weight
    return [first, nn.Tanh(), second]


def scored_by_hidden(hidden, x):
    return nn.functional.linear(hidden(x), hidden.weight)


def weight_of_activations(make, layer, x):
    """A linear layer whose weight another layer computes."""
    weight = make(x).mean(0).outer(x.mean(0))
    return torch.func.functional_call(layer, {"weight": weight}, (x,))


def differentiates(layer, x):
    """A layer that differentiates another one in its forward, without and with a graph."""
    with torch.enable_grad():
        given = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(layer(given).square().sum(), given)
    return layer(x + 0.1 * slope)


def penalizes(layer, x):
    given = x * 1.0
    (slope,) = torch.autograd.grad(layer(given).square().sum(), given, create_graph=True)
    return slope


def mapped(layer, x):
    return torch.vmap(layer)(x)


def checkpointed(reentrant):
    def forward(block, x):
        return checkpoint(block, x, use_reentrant=reentrant)

    return lambda: [nn.Linear(8, 8), Function(forward, nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)))]


def frozen():
    layer, bias_only = nn.Linear(8, 8).requires_grad_(requires_grad=False), nn.Linear(8, 8)
    bias_only.weight.requires_grad_(requires_grad=False)
    return [nn.Linear(8, 8), layer, bias_only, nn.Linear(8, 8)]


def parametrized():
    return [torch.nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)), nn.utils.weight_norm(nn.Linear(8, 8))]


CASES = {
    "linear layers": (lambda: [nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4)], floats, "0.weight 0.bias 2.weight 2.bias"),
    "convolutions": (
        lambda: [nn.Conv2d(3, 4, 1), nn.ReLU(inplace=True), Block(), Block(), nn.Flatten(), nn.Linear(144, 2)],
        pictures,
        "0.weight 0.bias 2.first.weight 2.first.bias 2.second.weight 3.first.weight 3.first.bias 3.second.weight "
        "5.weight 5.bias",
    ),
    "transposed": (lambda: [nn.ConvTranspose2d(3, 2, 2)], pictures, "0.weight 0.bias"),
    "words": (lambda: [nn.Embedding(9, 8), nn.LayerNorm(8), nn.Linear(8, 3)], words, "0.weight 2.weight 2.bias"),
    "tied by use": (lambda: [Tied()], words, "0.hidden.weight 0.hidden.bias"),
    "tied layers": (twin_layers, sentences, "0.weight 0.bias 2.bias"),
    "called twice": (
        lambda: [Function(lambda f, x: f(torch.tanh(f(x))), nn.Linear(8, 8))],
        floats,
        "0.parts.0.weight 0.parts.0.bias",
    ),
    "weight used elsewhere": (lambda: [Function(scored_by_hidden, nn.Linear(8, 8))], floats, ""),
    "weight of activations": (
        lambda: [nn.Linear(8, 8), Function(weight_of_activations, nn.Linear(8, 8), nn.Linear(8, 8))],
        floats,
        "0.weight 0.bias 1.parts.0.weight 1.parts.0.bias 1.parts.1.weight",
    ),
    "differentiated": (lambda: [Function(differentiates, nn.Linear(8, 8))], floats, "0.parts.0.weight 0.parts.0.bias"),
    "differentiated twice": (lambda: [Function(penalizes, nn.Linear(8, 8, bias=False))], floats, ""),
    "mapped": (lambda: [Function(mapped, nn.Linear(8, 8))], sentences, ""),
    "recurrent": (
        lambda: [Function(lambda f, x: f(x)[0], nn.LSTM(8, 8)), nn.Linear(8, 8)],
        sentences,
        "1.weight 1.bias",
    ),
    "attention": (
        lambda: [nn.TransformerEncoderLayer(8, 2, 8, dropout=0.1, batch_first=True)],
        sentences,
        "0.linear1.weight 0.linear1.bias 0.linear2.weight 0.linear2.bias",
    ),
    "own layer": (lambda: [Product(), nn.Dropout(0.5), Product()], sentences, "0.weight 2.weight"),
    "whole by choice": (lambda: [Whole(nn.Linear(8, 8), nn.ReLU()), nn.Linear(8, 8)], floats, "1.weight 1.bias"),
    "checkpointed": (checkpointed(reentrant=False), floats, "0.weight 0.bias"),
    "checkpointed by reentering": (checkpointed(reentrant=True), floats, "0.weight 0.bias"),
    "frozen": (frozen, floats, "0.weight 0.bias 3.weight 3.bias"),
    "parametrized": (
        parametrized,
        floats,
        "0.bias 0.parametrizations.weight.original0 0.parametrizations.weight.original1 1.bias 1.weight_g 1.weight_v",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_split_backward_has_the_bits_of_a_whole_one(case):
    layers, inputs, left = CASES[case]
    assert assert_equal_bits(layers, inputs, index=0 if inputs is words else 1) == set(left.split())


MIXED = ("convolutions", "tied by use", "attention", "own layer", "checkpointed", "parametrized")


@pytest.mark.parametrize("case", MIXED)
@pytest.mark.parametrize(("microbatches", "lag"), [(4, 1), (4, 3)])
@pytest.mark.parametrize("activations", [Activations.KEPT, Activations.REBOUND, Activations.DROPPED])
def test_order_of_operations_changes_no_bit(case, microbatches, lag, activations):
    layers, inputs, _ = CASES[case]
    index = 0 if inputs is words else 1
    assert_equal_bits(layers, inputs, index=index, N=microbatches, lag=lag, activations=activations)


@pytest.mark.parametrize("case", MIXED)
@pytest.mark.parametrize("activations", [Activations.KEPT, Activations.REBOUND])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_mixed_precision_has_the_bits_of_a_whole_backward(case, precision, activations):
    layers, inputs, left = CASES[case]
    index = 0 if inputs is words else 1
    arithmetic = ComputeOptions(precision)
    found = assert_equal_bits(layers, inputs, index=index, N=2, activations=activations, arithmetic=arithmetic)
    assert found == set(left.split())


def test_first_stage_splits_without_gradients_of_its_inputs():
    layers, _, left = CASES["convolutions"]
    assert assert_equal_bits(layers, pictures, index=0) == set(left.split())


def test_compiled_layers_go_back_whole(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda layer, **_options: layer)
    assert assert_equal_bits(lambda: [nn.Linear(8, 8)], floats, arithmetic=ComputeOptions(compiled=True)) == set()


class EndsInExp(nn.Module):
    splits_backward = True

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))

    def forward(self, x):
        return torch.exp(x @ self.weight)


def test_change_in_place_of_what_a_split_layer_has_saved_is_an_error():
    stage = stage_of(EndsInExp(), nn.ReLU(inplace=True), index=1)
    stage.splits_backward = True
    with pytest.raises(RuntimeError, match="in-place"):
        step(stage, (floats(),), (floats(),))


def test_activations_count_until_their_w():
    stage, size = stage_of(nn.Linear(8, 8), index=1), floats().nbytes
    stage.splits_backward = True
    peaks = []
    for t in range(3):
        for j in range(2):
            step(stage, (floats(),), (floats(),), (t, j))
        peaks.append(stage.measurements.activation_bytes_peak)
        for j in range(2):
            stage.weight_gradient((t, j), newest(stage))
    assert peaks == [2 * size, 4 * size, 4 * size]  # the very first microbatch goes back whole
