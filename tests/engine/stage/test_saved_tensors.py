"""Casts of weights that a forward saves are those of the version that the backward reads."""

import pytest
import torch
from torch import nn
from torch.func import functional_call

from pipetrain.engine.arithmetic import ComputeOptions
from pipetrain.engine.stage.saved_tensors import GraphCasts, SavedTensors, WeightCasts

BF16 = torch.bfloat16


class Half(nn.Module):
    """Uses a part of its weight."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 6))

    def forward(self, x):
        return x @ self.weight.split([2, 6])[1].t()


def input_gradient(module, x, backward_weights, gradient, kind=WeightCasts):
    """That of a forward in bf16 with the module's weights and a backward with others."""
    weights = {name: parameter.detach() for name, parameter in module.named_parameters()}
    saved = SavedTensors(weights, kind(weights))
    x = x.clone().requires_grad_()
    with saved.hooks(), ComputeOptions("bf16").computing(x.device):
        output = module(x)
    saved.backward_weights = backward_weights
    return torch.autograd.grad(output, x, gradient(output))[0]


@pytest.mark.parametrize("name", ["linear", "convolution", "part"])
def test_mixed_precision_backward_reads_casts_of_named_weights(name):
    torch.manual_seed(0)
    module = {"linear": nn.Linear(6, 5), "convolution": nn.Conv2d(3, 4, 3), "part": Half()}[name]
    x = torch.randn(2, 3, 6, 6) if name == "convolution" else torch.randn(4, 6)
    other = {key: torch.randn_like(parameter) for key, parameter in module.named_parameters()}
    found = input_gradient(module, x, other, torch.ones_like)
    with torch.no_grad():
        for key, parameter in module.named_parameters():
            parameter.copy_(other[key])
    assert torch.equal(found, input_gradient(module, x, other, torch.ones_like))
    assert found.abs().sum() > 0


@pytest.mark.parametrize(
    ("module", "shape", "recognized"),
    [
        (nn.Linear(6, 5), (4, 6), True),
        (nn.Conv2d(3, 4, 3), (2, 3, 6, 6), True),
        (nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, 5)), (4, 6), True),
        (Half(), (4, 6), False),
    ],
)
def test_graph_shows_the_casts_of_whole_weights(module, shape, recognized):
    weights = {name: parameter.detach() for name, parameter in module.named_parameters()}
    casts = WeightCasts(weights)
    with SavedTensors(weights, casts).hooks(), ComputeOptions("bf16").computing(torch.device("cpu")):
        module(torch.randn(shape).requires_grad_())
    assert casts.in_graph is recognized
    if recognized:
        other, x = {name: torch.randn_like(weight) for name, weight in weights.items()}, torch.randn(shape)
        one, two = (input_gradient(module, x, other, torch.ones_like, kind) for kind in (WeightCasts, GraphCasts))
        assert torch.equal(one, two)


def test_memory_of_a_cast_that_is_gone_may_be_anothers():
    weight = torch.randn(64)
    with WeightCasts({"w": weight}) as casts:
        cast = weight.to(BF16)
        assert casts.of(cast[3:]).name == "w"
        pointer = cast.untyped_storage().data_ptr()
        del cast
        again = torch.zeros(64, dtype=BF16)
    assert again.untyped_storage().data_ptr() != pointer or casts.of(again) is None


class First(nn.Module):
    """Only the first of what a module returns."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *inputs):
        return self.module(*inputs)[0]


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]


class Twice(nn.Module):
    """One weight used twice, once transposed."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6))

    def forward(self, x):
        return torch.tanh(x @ self.weight) @ self.weight.t()


CASES = {
    "linear": (lambda: nn.Linear(6, 5), (4, 6)),
    "mlp": (lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), (4, 6)),
    "conv": (lambda: nn.Conv2d(3, 4, 3, padding=1), (2, 3, 6, 6)),
    "grouped conv": (lambda: nn.Conv2d(4, 4, 3, groups=2), (2, 4, 6, 6)),
    "batch norm": (lambda: nn.BatchNorm2d(3), (4, 3, 5, 5)),
    "conv and batch norm": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 3)),
        (4, 3, 6, 6),
    ),
    "layer norm": (lambda: nn.LayerNorm(6), (4, 6)),
    "group norm": (lambda: nn.GroupNorm(2, 4), (2, 4, 5)),
    "prelu": (lambda: nn.PReLU(4), (2, 4, 5)),
    "lstm": (lambda: First(nn.LSTM(6, 5, num_layers=2, batch_first=True)), (3, 7, 6)),
    "gru": (lambda: First(nn.GRU(6, 5, bidirectional=True)), (3, 7, 6)),
    "attention": (Attention, (3, 5, 8)),
    "transformer layer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), (3, 5, 8)),
    "one weight twice": (Twice, (4, 6)),
    "channels_last": (lambda: nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last), (2, 3, 6, 6)),
}


def made(case):
    torch.manual_seed(0)
    make, shape = CASES[case]
    return make(), torch.randn(shape)


def another_version(module):
    torch.manual_seed(1)
    return {name: p.detach() + 0.3 * torch.randn_like(p) for name, p in module.named_parameters()}


def under_hooks(module, inputs, forward_weights, backward_weights):
    """(output, gradients of the weights by name, gradient of the input)."""
    saved = SavedTensors(forward_weights)
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in forward_weights.items()}
    with saved.hooks():
        output = functional_call(module, leaves, inputs)
    saved.backward_weights = backward_weights
    floating = [tensor for tensor in inputs if tensor.requires_grad]
    found = torch.autograd.grad(output, [*leaves.values(), *floating], torch.ones_like(output), allow_unused=True)
    return output, dict(zip(leaves, found[: len(leaves)], strict=True)), found[len(leaves) :]


def swapped_in_place(module, inputs, backward_weights):
    """The same through plain autograd, the weights overwritten between forward and backward."""
    output = module(*inputs)
    parameters = dict(module.named_parameters())
    with torch.autograd._unsafe_preserve_version_counter(tuple(parameters.values())), torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(backward_weights[name])
    floating = [tensor for tensor in inputs if tensor.requires_grad]
    found = torch.autograd.grad(output, [*parameters.values(), *floating], torch.ones_like(output), allow_unused=True)
    return output, dict(zip(parameters, found[: len(parameters)], strict=True)), found[len(parameters) :]


def weights_of(module):
    return {name: p.detach().clone(memory_format=torch.preserve_format) for name, p in module.named_parameters()}


@pytest.mark.parametrize("case", CASES)
def test_saved_tensor_hooks_give_the_bits_of_a_swap_in_place(case):
    module, x = made(case)
    x.requires_grad_()
    other, buffers = another_version(module), {n: b.clone() for n, b in module.named_buffers()}
    ours = under_hooks(module, (x,), weights_of(module), other)
    for name, buffer in module.named_buffers():
        buffer.copy_(buffers[name])
    theirs = swapped_in_place(module, (x,), other)
    assert torch.equal(ours[0], theirs[0])
    for name, gradient in theirs[1].items():
        assert torch.equal(ours[1][name], gradient), name
    assert all(torch.equal(a, b) for a, b in zip(ours[2], theirs[2], strict=True))


def test_embedding_behind_a_linear_layer_finds_the_named_version():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Embedding(7, 6), nn.Linear(6, 3))
    ids, other = torch.randint(0, 7, (4, 5)), another_version(module)
    ours = under_hooks(module, (ids,), weights_of(module), other)
    theirs = swapped_in_place(module, (ids,), other)
    assert all(torch.equal(ours[1][name], gradient) for name, gradient in theirs[1].items())


def test_activations_are_counted_and_weights_are_not():
    module, x = nn.Linear(6, 5), torch.randn(4, 6, requires_grad=True)
    saved = SavedTensors(dict(module.named_parameters()))
    with saved.hooks():
        torch.relu(module(x))
    assert sum(saved.activation_bytes([])) == 4 * 6 * 4 + 4 * 5 * 4  # the input of the linear layer, the output of relu


def test_storage_that_several_operations_save_counts_once():
    x = torch.randn(8, requires_grad=True)
    saved = SavedTensors({})
    with saved.hooks():
        x * x, x.exp(), x[:4].sin()
    assert sum(saved.activation_bytes([])) == 8 * 4 + 8 * 4  # x, and the result of exp


def test_saved_tensor_written_in_place_is_detected():
    w, x = torch.ones(3), torch.randn(3, requires_grad=True)
    leaf = w.detach().requires_grad_()
    saved = SavedTensors({"w": w})
    with saved.hooks():
        y = (x * leaf).exp()
        z = y * 1.0
        y.add_(1.0)
    saved.backward_weights = {"w": w}
    with pytest.raises(RuntimeError, match="in-place"):
        torch.autograd.grad(z.sum() + y.sum(), [x])


class OfParts(nn.Module):
    """Uses the parts of a complex weight as real weights."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 4, dtype=torch.complex64))

    def forward(self, x):
        return (x @ self.w.real)[:, :2] + x @ self.w.imag[:2].T


class FromParts(nn.Module):
    """Uses a real weight as the parts of a complex one."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 4, 2))

    def forward(self, x):
        return torch.view_as_real(x.to(torch.complex64) @ torch.view_as_complex(self.w)[:, 1:]).sum(-1)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", [OfParts, FromParts])
def test_weight_in_another_type_is_read_from_the_other_version(kind, precision):
    torch.manual_seed(0)
    module, x = kind(), torch.randn(3, 4, requires_grad=True)
    w, other = module.w.detach().clone(), torch.randn_like(module.w)
    casts = WeightCasts({"w": w}) if precision == "bf16" else None
    saved, leaf = SavedTensors({"w": w}, casts), w.detach().requires_grad_()
    with torch.autocast("cpu", enabled=precision == "bf16", cache_enabled=False):
        with saved.hooks():
            output = functional_call(module, {"w": leaf}, (x,))
        saved.backward_weights = {"w": other}
        expected = functional_call(module, {"w": other}, (x,))
    ours, theirs = (torch.autograd.grad(each.float().sum(), [x])[0] for each in (output, expected))
    assert torch.equal(ours, theirs)


def test_conjugate_of_a_complex_weight_is_read_as_a_conjugate():
    torch.manual_seed(0)

    class Product(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(4, dtype=torch.complex64))

        def forward(self, x):
            return torch.view_as_real(x * self.w.conj()).sum(-1)

    module, x = Product(), torch.randn(4, dtype=torch.complex64, requires_grad=True)
    other = another_version(module)
    ours = under_hooks(module, (x,), weights_of(module), other)
    x2 = x.detach().requires_grad_()
    module.w.data = other["w"]  # x is not conjugated, so only the weights that the backward reads are other ones
    output = module(x2)
    theirs = torch.autograd.grad(output, [x2], torch.ones_like(output))
    torch.testing.assert_close(ours[2][0], theirs[0])
