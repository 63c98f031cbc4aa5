"""Layers whose backward reads other weights, or that are computed a second time."""

import pytest
import torch
from support import small_model
from support.pipelines import Function
from support.refusals import assert_refused
from torch import nn

from pipetrain.engine.arithmetic import ComputeOptions
from pipetrain.graph.conversion import chain_of
from pipetrain.graph.layer_trials import check_forwards
from pipetrain.graph.reread_trials import check_recomputation, weight_derived_layers


class Scaled(nn.Module):
    """A linear layer whose weight is computed from its parameters in every forward."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.scale = nn.Parameter(torch.ones(4, 1))

    def forward(self, x):
        return nn.functional.linear(x, self.weight * self.scale)


def probe(*layers):
    return weight_derived_layers(chain_of(nn.Sequential(*layers)), (torch.randn(6, 4),))


def test_model_check_passes_ordinary_layers():
    assert probe(nn.Linear(4, 4), nn.ReLU(), nn.LayerNorm(4), nn.Dropout(0.5), nn.Linear(4, 2)) == []
    assert weight_derived_layers(small_model.build(1, 4), (torch.randn(4, 1, 8, 8),)) == []


@pytest.mark.parametrize(
    "tokens",
    [torch.arange(24).view(6, 4), torch.zeros(6, 4, dtype=torch.long), torch.arange(4)[None]],
    ids=["of several samples", "all alike", "of one sample"],
)
def test_check_passes_ordinary_layers_on_integer_inputs(tokens):
    behind = [nn.Sequential(nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 12)), nn.Linear(12, 2)]
    first = nn.Sequential(nn.Embedding(24, 3), nn.Flatten(), nn.Linear(12, 12), nn.Tanh())
    for layers in ([first, *behind], [*first, *behind]):
        assert weight_derived_layers(chain_of(nn.Sequential(*layers)), (tokens,)) == []


def test_check_names_computed_weights_behind_integer_inputs():
    layers = nn.Embedding(24, 4), Scaled(), nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    for tokens in (torch.arange(24).view(6, 4), torch.zeros(6, 4, dtype=torch.long)):
        assert weight_derived_layers(chain_of(nn.Sequential(*layers)), (tokens,)) == ["1:Scaled"]


@pytest.mark.parametrize("layer", [Scaled, lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))])
def test_model_check_names_weights_computed_in_the_forward(layer):
    assert probe(nn.Linear(4, 4), layer(), nn.ReLU()) == ["1:" + type(layer()).__name__]


class Recurrent(nn.Module):
    """A recurrent module of torch's, which begins with zeros of its own making."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x):
        outputs = self.module(x)
        while isinstance(outputs, tuple):
            outputs = outputs[0]
        return outputs


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM, nn.RNN, nn.GRUCell, nn.LSTMCell, nn.RNNCell])
def test_model_check_passes_the_recurrent_layers_of_torch(kind):
    assert probe(nn.Linear(4, 4), Recurrent(kind(4, 4)), nn.Linear(4, 2)) == []


def test_check_names_recurrent_layer_with_computed_weights():
    derived = nn.utils.parametrizations.weight_norm(nn.GRUCell(4, 4), "weight_hh")
    assert probe(nn.Linear(4, 4), Recurrent(derived), nn.ReLU()) == ["1:Recurrent"]


def test_casts_that_layers_of_torch_save_are_all_noticed():
    across = Function(lambda attention, x: attention(x, 2 * x, 2 * x)[0], nn.MultiheadAttention(8, 2, batch_first=True))
    net = nn.Sequential(
        nn.Linear(8, 8),
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
        across,
        Recurrent(nn.LSTM(8, 4, bidirectional=True, batch_first=True)),
        nn.Linear(8, 3),
    )
    assert weight_derived_layers(chain_of(net), (torch.randn(4, 5, 8),), ComputeOptions("bf16")) == []


def test_model_check_leaves_the_model_as_it_was():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    weight_derived_layers(chain_of(model), (torch.randn(6, 4),))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


class Force(nn.Linear):
    """The negative gradient of an energy by its input, which a leaf of its own takes the place of."""

    def forward(self, x):
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            return -torch.autograd.grad(super().forward(x).tanh().sum(), x, create_graph=True)[0]


def test_forward_may_make_a_leaf_to_take_a_gradient_by():
    assert probe(Force(4, 4), nn.Linear(4, 4)) == []
    check_forwards(chain_of(nn.Sequential(Force(4, 4), nn.Linear(4, 4))), (torch.randn(6, 4),), [1], ComputeOptions())


def test_check_refuses_embedding_that_changes_its_weights():
    chain = chain_of(nn.Sequential(nn.Embedding(5, 4, max_norm=1.0)))
    assert_refused("max_norm", weight_derived_layers, chain, (torch.tensor([[1, 2]]),))


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.calls, self.shape = nn.Linear(4, 4), 0, None

    def forward(self, x):
        self.shape = x.shape
        return self.linear(x)


class Warming(Counting):
    def forward(self, x):
        self.calls += 1
        return super().forward(x) * min(1, self.calls / 10)


def test_layer_that_counts_its_forwards_is_not_recomputed():
    chain = chain_of(nn.Sequential(nn.Linear(4, 4), Warming()))
    named = r"^train\.recompute: .* 1 changes the attribute `calls`"
    assert_refused(named, check_recomputation, chain, (torch.randn(6, 4),))
    assert chain.module[1].calls == 0
    check_recomputation(chain_of(nn.Sequential(nn.Linear(4, 4), Counting(), nn.Dropout(0.5))), (torch.randn(6, 4),))


def test_weight_norm_that_cannot_be_copied_is_named():
    chain = chain_of(nn.Sequential(torch.nn.utils.weight_norm(nn.Linear(4, 4))))
    chain(torch.randn(2, 4))
    named = r"weight_norm .* of torch\.nn\.utils\.parametrizations"
    assert_refused(named, weight_derived_layers, chain, (torch.randn(3, 4),))


class Drawing(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = torch.Generator().manual_seed(0)

    def forward(self, inputs):
        return inputs * torch.rand(1, generator=self.generator)


def spectrally_normed():
    """With singular values so close that the power iteration takes long."""
    layer = nn.Linear(16, 16)
    layer.weight.data = torch.diag(torch.linspace(0.9, 1, 16))
    return nn.utils.parametrizations.spectral_norm(layer)


@pytest.mark.parametrize("layer", [spectrally_normed(), Drawing()])
def test_layer_that_computes_something_else_again_is_not_recomputed(layer):
    ordinary = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Dropout())
    check_recomputation(chain_of(ordinary), (torch.randn(8, 4),))
    chain = chain_of(nn.Sequential(*ordinary, layer))
    assert_refused("not repeatable", check_recomputation, chain, (torch.randn(8, 4),))
