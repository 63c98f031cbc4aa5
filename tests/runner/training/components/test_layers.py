"""Weights that version bookkeeping cannot see are found before a run starts."""

import copy

import pytest
import torch
from support import small_model
from support.pipelines import Function
from support.running_text import ROWS, RunningText, build
from torch import nn

from pipetrain.engine.arithmetic import ComputeOptions
from pipetrain.engine.data.loader import Loader
from pipetrain.engine.errors import ConfigError
from pipetrain.graph.conversion import chain_of
from pipetrain.runner.training.components.layers import check_forwards
from pipetrain.runner.training.components.model import check_cut
from pipetrain.runner.training.components.model_checks import (
    check_batch_norm,
    check_gradients,
    check_memory,
    check_stateful_data,
)
from pipetrain.runner.training.components.rereads import check_recomputation, weight_derived_layers


class Scaled(nn.Module):
    """A linear layer whose weight is computed from its parameters in every forward."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.scale = nn.Parameter(torch.ones(4, 1))

    def forward(self, x):
        return nn.functional.linear(x, self.weight * self.scale)


class Hidden(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights = [nn.Parameter(torch.randn(4, 4))]

    def forward(self, x):
        return x @ self.weights[0]


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


def test_model_check_leaves_the_model_as_it_was():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    weight_derived_layers(chain_of(model), (torch.randn(6, 4),))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_check_refuses_unregistered_parameter():
    with pytest.raises(ConfigError, match=r"1:Hidden uses a parameter of shape \(4, 4\) that none"):
        probe(nn.Linear(4, 4), Hidden())


class Force(nn.Linear):
    """The negative gradient of an energy by its input, which a leaf of its own takes the place of."""

    def forward(self, x):
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            return -torch.autograd.grad(super().forward(x).tanh().sum(), x, create_graph=True)[0]


def test_forward_may_make_a_leaf_to_take_a_gradient_by():
    assert probe(Force(4, 4), nn.Linear(4, 4)) == []
    check_forwards(chain_of(nn.Sequential(Force(4, 4), nn.Linear(4, 4))), (torch.randn(6, 4),), [1], ComputeOptions())


class Borrowing(nn.Module):
    """Computes with the weight of another layer, which it does not register."""

    def __init__(self, lender: nn.Module) -> None:
        super().__init__()
        self.lenders = [lender]

    def forward(self, x):
        return x @ self.lenders[0].weight


def test_forward_with_a_weight_of_another_layer_is_refused():
    lender = nn.Linear(4, 4)
    chain = chain_of(nn.Sequential(lender, nn.ReLU(inplace=True), Borrowing(lender)))
    with pytest.raises(ConfigError, match=r"2:Borrowing uses a parameter of shape \(4, 4\) that none"):
        check_forwards(chain, (torch.randn(6, 4),), [], ComputeOptions())


def test_complex_tensor_before_a_cut_is_refused_if_it_needs_a_gradient():
    layers = [Function(torch.fft.rfft), nn.Linear(4, 6), Function(torch.fft.rfft), Function(torch.abs), nn.Linear(4, 2)]
    chain, inputs = chain_of(nn.Sequential(*layers[1:])), (torch.randn(6, 4),)
    for cuts in ([], [1], [3], [1, 3]):
        check_forwards(chain, inputs, cuts, ComputeOptions())
    with pytest.raises(ConfigError, match="layer 1:Function, the last of its stage, returns a complex tensor"):
        check_forwards(chain, inputs, [2], ComputeOptions())
    transformed = chain_of(nn.Sequential(layers[0], Function(torch.abs), nn.Linear(3, 2)))
    check_forwards(transformed, inputs, [1], ComputeOptions())
    assert transformed.layers[0].training


def test_check_refuses_embedding_that_changes_its_weights():
    chain = chain_of(nn.Sequential(nn.Embedding(5, 4, max_norm=1.0)))
    with pytest.raises(ConfigError, match="max_norm"):
        weight_derived_layers(chain, (torch.tensor([[1, 2]]),))


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
    with pytest.raises(ConfigError, match=r"^train\.recompute: the forward of 1 changes the attribute `calls`"):
        check_recomputation(chain, (torch.randn(6, 4),))
    assert chain.module[1].calls == 0
    check_recomputation(chain_of(nn.Sequential(nn.Linear(4, 4), Counting(), nn.Dropout(0.5))), (torch.randn(6, 4),))


def test_batch_norm_of_one_value_is_refused_with_layer():
    layers = nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.BatchNorm1d(4))
    with pytest.raises(ConfigError, match=r"some microbatch has one sample, and batch norm in layer 2:BatchNorm1d"):
        check_batch_norm(chain_of(layers), (torch.randn(6, 4),))
    assert layers[2].num_batches_tracked == 0
    check_batch_norm(chain_of(nn.Sequential(nn.BatchNorm2d(1))), (torch.randn(6, 1, 2, 2),))


X = (torch.linspace(-1, 1, 16).view(4, 4),)
BF16 = ComputeOptions("bf16")


class Asking(nn.Module):
    """Does something with the dtype that its first layer returns."""

    def __init__(self, function):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)
        self.function = function

    def forward(self, x):
        hidden = self.first(x)
        return self.last(self.norm(self.function(hidden.float(), hidden.dtype)))


def test_precision_casts_pass_and_leave_model_unchanged():
    chain = chain_of(Asking(lambda x, dtype: x.to(dtype)), X)
    check_cut(chain, X, None, 0, BF16)
    assert chain.module.norm.num_batches_tracked == 0
    assert chain.module.training


def test_forward_that_does_something_else_for_a_dtype_is_refused():
    chain = chain_of(Asking(lambda x, dtype: x * 2 if dtype == torch.float32 else x), X)
    with pytest.raises(
        ConfigError, match=r"^train.precision=bf16: in stages, Asking gives different .* dtypes .*fp32 works"
    ):
        check_cut(chain, X, None, 0, BF16)


def loaders(split, rows=ROWS):
    return {"train": Loader(split, batch_size=rows, shuffle=False)}


def test_minibatches_that_follow_one_another_pass():
    check_stateful_data(build(), loaders(RunningText(2, seed=0)))


def test_minibatches_that_do_not_are_refused_with_what_works():
    windows = [RunningText(2, seed=0)[i] for i in range(8)]
    with pytest.raises(ConfigError, match=r"layer lstms\.0\S* carries .*`train` do not continue.*carried=true"):
        check_stateful_data(build(), loaders(windows))


def test_minibatches_of_unlike_rows_are_refused():
    class Ordered(list):
        ordered = True

    with pytest.raises(ConfigError, match="`train` have 2 to 3 rows"):
        check_stateful_data(build(), loaders(Ordered(RunningText(2, seed=0)[i] for i in range(8)), rows=3))


def test_models_that_carry_nothing_take_any_minibatches():
    windows = [RunningText(2, seed=0)[i] for i in range(7)]
    check_stateful_data(chain_of(nn.Sequential(nn.Embedding(11, 2))), loaders(windows, 3))


class Normed(nn.Linear):
    """Keeps its weight at a norm of 1, as max-norm layers do."""

    def forward(self, inputs):
        self.weight.data = self.weight.data / self.weight.data.norm()
        return super().forward(inputs)


class NormedInTraining(Normed):
    def forward(self, inputs):
        return super().forward(inputs) if self.training else nn.Linear.forward(self, inputs)


class Late(nn.Module):
    """Makes a buffer that checkpoints have at its first forward."""

    def forward(self, inputs):
        self.register_buffer("seen", inputs.mean(0).detach())
        return inputs


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (Normed(4, 4), "assigns to weight.data"),
        (NormedInTraining(4, 4), "assigns to weight.data"),
        (Late(), "makes the buffer seen"),
    ],
)
def test_forward_that_replaces_what_a_stage_holds_is_refused(layer, message):
    chain = chain_of(nn.Sequential(nn.Linear(4, 4), layer))
    with pytest.raises(ConfigError, match=message):
        check_forwards(chain, (torch.randn(3, 4),), [1], ComputeOptions())


def test_constant_complex_tensor_may_cross_a_cut():
    class First(nn.Linear):
        def forward(self, inputs):
            return super().forward(inputs), torch.ones(1, dtype=torch.complex64)

    class Passing(nn.Linear):
        def forward(self, pair):
            return super().forward(pair[0]), pair[1]

    class Last(nn.Linear):
        def forward(self, pair):
            return super().forward(pair[0]) * pair[1].real

    chain = chain_of(nn.Sequential(First(4, 4), Passing(4, 4), Last(4, 4)))
    check_forwards(chain, (torch.randn(3, 4),), [1, 2], ComputeOptions())


def test_scripted_layer_is_left_alone():
    chain = chain_of(nn.Sequential(torch.jit.script(nn.Linear(4, 4)), nn.Linear(4, 2)))
    check_forwards(chain, (torch.randn(3, 4),), [1], ComputeOptions())


def test_weight_norm_that_cannot_be_copied_is_named():
    chain = chain_of(nn.Sequential(torch.nn.utils.weight_norm(nn.Linear(4, 4))))
    chain(torch.randn(2, 4))
    with pytest.raises(ConfigError, match=r"torch\.nn\.utils\.parametrizations has weight_norm"):
        weight_derived_layers(chain, (torch.randn(3, 4),))


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
    with pytest.raises(ConfigError, match=r"the forward is not repeatable"):
        check_recomputation(chain_of(nn.Sequential(*ordinary, layer)), (torch.randn(8, 4),))


def test_gradients_that_a_stage_cannot_give_are_refused():
    masked = nn.Linear(4, 4)
    check_gradients(chain_of(nn.Sequential(nn.Embedding(4, 4), masked)))
    masked.weight.register_hook(lambda gradient: 0 * gradient)
    with pytest.raises(ConfigError, match=r"0\.weight has a gradient hook"):
        check_gradients(chain_of(nn.Sequential(masked)))
    with pytest.raises(ConfigError, match=r"model: 0 is an nn.SyncBatchNorm, .* nn.BatchNorm2d works"):
        check_gradients(chain_of(nn.Sequential(nn.SyncBatchNorm(3))))
    with pytest.raises(ConfigError, match=r"sparse=True"):
        check_gradients(chain_of(nn.Sequential(nn.Embedding(4, 4, sparse=True))))


class Keeping(nn.Module):
    """Keeps a part of its weight."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.parts = {"upper": self.weight.detach()[:2]}


def test_weight_whose_memory_is_shared_is_refused():
    recurrent = nn.LSTM(4, 4)  # has its parameters in a list as well
    check_memory(chain_of(nn.Sequential(nn.BatchNorm1d(4), recurrent)))
    with pytest.raises(ConfigError, match=r"model: 1\.parts\.0 shares the memory of a weight"):
        check_memory(chain_of(nn.Sequential(nn.Linear(4, 4), Keeping())))
    recurrent.register_buffer("first", recurrent.bias_ih_l0.data)
    with pytest.raises(ConfigError, match=r"model: 0\.first shares the memory of a weight"):
        check_memory(chain_of(nn.Sequential(recurrent)))


class Grouped(nn.Module):
    """Needs more samples in training than in evaluation, and keeps what it has computed."""

    def forward(self, inputs):
        self.last = inputs * 2
        return self.last.view(8, -1).view_as(inputs) if self.training else self.last


def test_layer_that_needs_more_samples_in_training_passes():
    chain = chain_of(nn.Sequential(nn.Linear(3, 3), Grouped()))
    check_forwards(chain, (torch.randn(2, 3),), [1], ComputeOptions())
    copy.deepcopy(chain)


class Padded(nn.Module):
    """An encoder of padded sequences, whose mean also counts padded positions."""

    def __init__(self, *, nested):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.table, self.head = nn.Embedding(10, 8), nn.Linear(8, 2)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested)

    def forward(self, ids):
        return self.head(self.encoder(self.table(ids), src_key_padding_mask=ids == 0).mean(1))


@pytest.mark.parametrize("nested", [False, True])
def test_evaluation_unlike_that_of_the_whole_module_is_noted(nested):
    ids = torch.arange(5 * 6).reshape(5, 6) % 9 + 1
    ids[2:, 3:] = 0
    notes = check_cut(chain_of(Padded(nested=nested), (ids,)), (ids,), None, 0)
    assert [note.partition(":")[0] for note in notes] == ["warning"] * nested
    assert all("Padded itself" in note and "enable_nested_tensor=False" in note for note in notes)


class RandomInEvaluation(nn.Module):
    """Draws as variational autoencoders and Monte Carlo dropout do."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)
        self.fails = False

    def forward(self, x):
        if self.fails and not self.training:
            raise NotImplementedError
        hidden = nn.functional.dropout(self.first(x), 0.5, training=True)
        return self.last(hidden + torch.randn_like(hidden))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("fails", [False, True])
def test_random_or_failing_evaluation_is_no_difference(fails, precision):
    x = torch.randn(5, 4)
    chain = chain_of(RandomInEvaluation(), (x,))
    chain.module.fails = fails
    assert check_cut(chain, (x,), None, 0, ComputeOptions(precision=precision)) == []


class Growing(nn.Linear):
    """Multiplies its output with a buffer that it changes in place."""

    def __init__(self, *, cloned):
        super().__init__(4, 4)
        self.register_buffer("gain", torch.ones(()))
        self.cloned = cloned

    def forward(self, x):
        self.gain.add_(0.01)
        return super().forward(x) * (self.gain.clone() if self.cloned else self.gain)


def test_forward_that_overwrites_what_an_earlier_backward_needs_is_refused():
    inputs = (torch.randn(6, 4),)
    chain = chain_of(nn.Sequential(nn.Linear(4, 4), Growing(cloned=False)))
    check_forwards(chain, inputs, [1], ComputeOptions(), overlap=False)
    with pytest.raises(ConfigError, match=r"the forward of layer 1:Growing changes a buffer in place .* a clone\(\)"):
        check_forwards(chain, inputs, [1], ComputeOptions())
    check_forwards(chain_of(nn.Sequential(nn.Linear(4, 4), Growing(cloned=True))), inputs, [1], ComputeOptions())


class Accumulating(nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        y.sum().backward(retain_graph=True)
        return y


def looked_up(table, x):
    return nn.functional.embedding(x.long().abs(), table.weight, sparse=True).flatten(1)


@pytest.mark.parametrize(
    ("layer", "error"),
    [
        (Accumulating(4, 4), r"layer 1:Accumulating calls backward\(\), .*torch.autograd.grad works"),
        (
            Function(looked_up, nn.Embedding(9, 2)),
            "layer 1:Function makes a sparse gradient of parts.0.weight; .* dense",
        ),
    ],
)
def test_layer_whose_gradients_are_no_sum_of_dense_ones_is_refused(layer, error):
    chain = chain_of(nn.Sequential(nn.Linear(4, 4), layer))
    with pytest.raises(ConfigError, match=error):
        check_forwards(chain, (torch.randn(6, 4),), [1], ComputeOptions())


@pytest.mark.parametrize("overlap", [False, True])
def test_cut_without_a_gradient_is_named(overlap):
    inputs = (torch.randn(6, 4),)
    chain = chain_of(nn.Sequential(nn.Linear(4, 4), Function(torch.detach), nn.Linear(4, 2)))
    (note,), _ = check_forwards(chain, inputs, [1], ComputeOptions(), overlap=overlap)
    assert note.startswith("warning: layer 1:Function, the first of its stage, passes no gradient back")
    assert check_forwards(chain, inputs, [2], ComputeOptions())[0] == []
