import copy
import functools
import re
from contextlib import nullcontext
from pathlib import Path
from queue import Queue
from threading import Thread

import pytest
import torch
from support.pipelines import Function
from support.refusals import assert_refused
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

from pipetrain.engine.errors import ConfigError, RunError
from pipetrain.engine.models.stateful_layer import StatefulLayer, stateful_layers
from pipetrain.graph.conversion import chain_of
from pipetrain.graph.equivalence import matches_eager, trains_like_eager
from pipetrain.graph.example import Example

HERE = Path(__file__).name


class Skip(nn.Module):
    """Skip connections, an in-place operation, dropout, batch norm, a size in a view, a parameter and a buffer."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.second = nn.Linear(6, 6)
        self.norm = nn.BatchNorm1d(6)
        self.scale = nn.Parameter(torch.rand(6))
        self.third = nn.Linear(6, 6)
        self.last = nn.Linear(6, 3)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("shift", torch.rand(6), persistent=False)
        self.eps = torch.full((), 0.5)

    def forward(self, x):
        self.calls += 1
        n, _ = x.shape
        hidden = torch.relu(self.first(x))
        skip = hidden
        hidden = F.dropout(self.norm(self.second(hidden)), 0.5, self.training)
        hidden = hidden.view(n, 2, 3).transpose(1, 2).reshape(n, -1) * self.scale
        hidden += skip
        hidden = self.third(hidden) + self.shift + self.eps
        return self.last(hidden + skip + torch.arange(n, device=x.device)[:, None])


def cut(model, *inputs, **options):
    torch.manual_seed(0)
    return chain_of(model, inputs or (torch.randn(4, 4),), **options)


def agrees(model, chain, *inputs):
    """Outputs, gradients and buffers of the chain and a copy of the model, in both modes."""
    for training in (True, False):
        for layer in chain.layers:
            layer.train(training)
        plain = copy.deepcopy(model).train(training)
        results = []
        for net in (chain, plain):
            torch.manual_seed(1)
            results.append(net(*inputs))
        assert torch.equal(*results)
        for result in results if training else ():
            result.sum().backward()
        for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
            assert not training or torch.equal(mine.grad, theirs.grad)
        for mine, theirs in zip(model.buffers(), plain.buffers(), strict=True):
            assert torch.equal(mine, theirs)
        model.zero_grad()


def test_chain_equals_module_in_both_modes_for_any_batch_size():
    model = Skip()
    before = copy.deepcopy(model.state_dict())
    chain = cut(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert chain.labels == ["first", "second", "third", "last"]
    for samples in (7, 2):
        agrees(model, chain, torch.randn(samples, 4))


def test_layers_relay_later_inputs_and_hold_all_state():
    model = Skip()
    chain = cut(model)
    x = torch.randn(5, 4)
    crossing = []
    for layer in chain.layers:
        x = layer(*x) if isinstance(x, tuple) else layer(x)
        crossing.append(len(x) if isinstance(x, tuple) else 1)
    assert crossing == [1, 2, 1, 1]
    names = {name for i in range(len(chain)) for name in chain.names(i).values()}
    assert names == set(model.state_dict())


def test_chain_reads_current_weights_of_its_layers():
    model = Skip()
    chain = cut(model)
    x = torch.randn(3, 4)
    with torch.no_grad():
        model.scale.zero_()
        model.third.weight.mul_(2)
    agrees(model, chain, x)


class Calling(nn.Module):
    """A module whose forward is a function, between two linear layers."""

    def __init__(self, function, *parts):
        super().__init__()
        self.before, self.after = nn.Linear(4, 4), nn.Linear(4, 2)
        self.parts = nn.ModuleList(parts)
        self.function = function

    def forward(self, x):
        return self.after(self.function(self.before(x), *self.parts))


def test_regions_of_autocast_in_the_forward_are_kept():
    def mixed(x, inner):
        with torch.autocast("cpu", torch.bfloat16):
            x = inner(x) @ torch.ones(4, 4, device=x.device)
            with torch.autocast("cpu", enabled=False):
                return x.float() @ torch.full((4, 4), 1.001, device=x.device)

    model = Calling(mixed, nn.Linear(4, 4))
    chain, x = cut(model), torch.randn(3, 4)
    agrees(model, chain, x)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(chain(x), model(x))


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(_ctx, x):
        return x.round()

    @staticmethod
    def backward(_ctx, gradient):
        return gradient


def test_autograd_function_keeps_its_own_backward():
    model = Calling(Straight.apply)
    chain = cut(model)
    chain(torch.randn(3, 4)).sum().backward()
    assert model.before.weight.grad.abs().sum() > 0


def test_what_is_computed_without_gradients_stays_so():
    def frozen(x):
        with torch.no_grad():
            scale = x.sigmoid()
        return scale * x

    model = Calling(frozen)
    agrees(model, cut(model), torch.randn(3, 4))


class InPlace(nn.Module):
    """Changes its input, and with it what a skip adds, by activations and by functions."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.activation = nn.ReLU(inplace=True)

    def forward(self, x):
        x = self.first(x.mul_(2).add_(0.5))
        x = self.second(self.activation(x)) + x
        return self.last(self.activation(x) + x)


def test_forward_in_place_computes_what_it_does_uncut():
    torch.manual_seed(0)
    model, inputs = InPlace(), torch.randn(5, 4)
    chain = cut(model, inputs.clone())
    assert len(chain) == 3
    for net in (chain, model):
        net.train()
    outputs = chain(inputs.clone()), model(inputs.clone())
    assert torch.equal(*outputs)
    assert trains_like_eager(chain, Example((inputs,)), None, seed=0)
    assert model.activation.inplace


class Energy(nn.Module):
    def __init__(self, *, enabled=True):
        super().__init__()
        self.linear, self.enabled = nn.Linear(4, 4), enabled

    def forward(self, x):
        with torch.enable_grad() if self.enabled else nullcontext():
            x = x if x.requires_grad else x.detach().requires_grad_()
            return torch.autograd.grad(self.linear(x).tanh().sum(), x, create_graph=True)[0]


class Around(nn.Module):
    """Calls a module between two layers, perhaps in a region of its own."""

    def __init__(self, inner, region=nullcontext):
        super().__init__()
        self.first, self.inner, self.last, self.region = nn.Linear(4, 4), inner, nn.Linear(4, 3), region

    def forward(self, x):
        x = self.first(x)
        with self.region():
            x = self.inner(x)
        return self.last(x)


@pytest.mark.parametrize("model", [Around(Energy()), Around(Energy(enabled=False), torch.enable_grad)])
def test_submodule_that_takes_a_gradient_stays_in_one_layer(model):
    torch.manual_seed(0)
    inputs = torch.randn(5, 4)
    chain = cut(model, inputs)
    (note,) = chain.notes
    assert re.match(rf"model: each Energy is part of one layer, .* a gradient .*{HERE}:\d+\)", note)
    assert trains_like_eager(chain, Example((inputs,)), None, seed=0)
    assert matches_eager(chain, Example((inputs,)), None, seed=0)


def hooked(x):
    x.register_hook(torch.neg)
    return x


def checkpointed(x):
    return checkpoint(torch.relu, x, use_reentrant=True)


REFUSED = {
    r"takes a gradient by grad \(": Energy(),
    r"hook neg on a tensor \(": Function(hooked),
    r"use_reentrant=True, .* \(": Function(checkpointed),
    r"applies torch.vmap .*torch.func \(": Function(torch.vmap(nn.Linear(4, 4))),
}


@pytest.mark.parametrize("error", REFUSED)
def test_what_a_forward_does_that_cannot_be_recorded_is_named_with_its_line(error):
    assert_refused(error, cut, REFUSED[error])


def test_gradient_that_evaluations_cannot_take_is_refused_with_the_cure():
    assert_refused(r"without gradients, and `with torch.enable_grad\(\):` around", cut, Around(Energy(enabled=False)))


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.other = nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(x) if x.sum() > 0 else self.other(x)


def test_value_branching_module_stays_in_one_layer_with_notice():
    model = Calling(lambda x, branching: branching(x), Branching())
    chain = cut(model)
    assert len(chain) == 3
    assert re.fullmatch(rf"model: each Branching is part of one layer, as .*values.*{HERE}:\d+\)", chain.notes[0])
    x = torch.randn(3, 4)
    assert torch.equal(chain(x), model(x))


def test_value_branching_model_is_refused_with_line_and_remedy():
    assert_refused(rf"model: Branching cannot be cut .*values .*{HERE}:\d+\); .*LayerChain", cut, Branching())


def test_failing_forward_is_reported_with_its_line_once():
    with pytest.raises(ConfigError, match=rf"model: Calling fails .* \(5x4 and 5x4\) \([^ ]*{HERE}:\d+\)$"):
        cut(Calling(lambda x, part: part(x), nn.Linear(5, 4)))


def test_lost_batch_size_is_refused_with_line():
    with pytest.raises(ConfigError, match=rf"Calling cannot be cut .*number of samples .*{HERE}:\d+\)"):
        cut(Calling(lambda x: x.reshape(int(x.shape[0]), -1)))


def test_sizes_taking_another_branch_end_the_run():
    chain = cut(Calling(lambda x: x if len(x.shape) == 2 and x.shape[0] > 2 else -x))
    assert chain(torch.randn(3, 4)).shape == (3, 2)
    with pytest.raises(RunError, match=rf"size of 2 .*another branch .*{HERE}:\d+"):
        chain(torch.randn(2, 4))


def asking(x):
    """Asks for a single sample, and does the same for it."""
    return x if x.shape[0] == 1 else x.expand(x.shape[0], -1)


def test_branch_on_single_sample_without_effect_is_accepted():
    model = Calling(asking)
    chain = cut(model)
    x = torch.randn(1, 4)
    assert torch.equal(chain(x), model(x))
    assert model.training
    assert all(layer.training for layer in chain.layers)


def test_single_sample_taking_another_branch_ends_the_run():
    chain = cut(Calling(lambda x: -x if x.shape[0] == 1 else x))
    assert chain(torch.randn(2, 4)).shape == (2, 2)
    with pytest.raises(RunError, match=r"size of 1 .*another branch"):
        chain(torch.randn(1, 4))


def test_single_sample_in_training_alone_is_tried_in_training():
    chain = cut(Calling(lambda x: x - x.mean(0) if torch.is_grad_enabled() and x.shape[0] > 1 else x))
    with pytest.raises(RunError, match=r"size of 1 .*another branch"):
        chain(torch.randn(1, 4))


class Sized(nn.Module):
    """Sequences, (samples, length, 4), with a number that follows from a size."""

    def __init__(self, number):
        super().__init__()
        self.first, self.last, self.number = nn.Linear(4, 4), nn.Linear(4, 2), number

    def forward(self, x):
        hidden = self.first(x)
        return self.last(hidden * self.number(hidden))


@pytest.mark.parametrize(
    "number",
    [lambda x: 1 + x.shape[1] // 2, lambda x: 1 + x.shape[1] // 64, lambda x: 1 + x.shape[0] // 8,
     lambda x: x[:, ::2].shape[1], lambda x: x[:, ::16].shape[1]],
    ids=["half of the length", "64ths", "eighths of the samples", "every second position", "every sixteenth position"],
)  # fmt: skip
def test_number_that_is_the_same_by_chance_is_no_constant(number):
    model = Sized(number)
    chain = cut(model, torch.randn(5, 9, 4))
    for samples, length in ((5, 9), (5, 20), (16, 9), (2, 200)):
        agrees(model, chain, torch.randn(samples, length, 4))


class Remembering(StatefulLayer):
    """A stateful layer with a child."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        (before,) = self.carried or (torch.zeros_like(x),)
        state = self.linear(x + before)
        self.carried = (state.detach(),)
        return state


def test_layer_that_carries_state_stays_whole():
    chain = cut(Calling(Remembering()))
    assert sum(len(stateful_layers(layer)) for layer in chain.layers) == 1


def test_names_that_differ_in_a_dot_are_two():
    class Norms(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.norm_0 = nn.ModuleList([nn.LayerNorm(4)]), nn.LayerNorm(4)
            self.last = nn.Linear(4, 2)
            nn.init.constant_(self.norm_0.weight, 3.0)

        def forward(self, x):
            return self.last(self.norm[0](x) + self.norm_0(x))

    model = Norms()
    agrees(model, cut(model), torch.randn(3, 4))


@functools.lru_cache
def table(length):
    return torch.linspace(0, 1, length)


class Positions(nn.Module):
    def forward(self, x):
        return x + table(x.shape[1])


def test_cache_of_a_function_keeps_nothing_of_the_recording():
    model = Calling(Positions())
    agrees(model, cut(model), torch.randn(3, 4))
    assert type(table(4)) is torch.Tensor


def test_refused_branch_leaves_no_region_of_autocast_entered():
    def mixed(x):
        with torch.autocast("cpu", torch.bfloat16):
            return x @ torch.ones(4, 4) if x.shape[1] > 8 else x

    chain = cut(Calling(mixed), torch.randn(3, 12, 4))
    with pytest.raises(RunError, match="takes another branch"):
        chain(torch.randn(3, 4, 4))
    assert not torch.is_autocast_enabled("cpu")


class Caching(nn.Module):
    """Keeps what it makes for a length."""

    def __init__(self):
        super().__init__()
        self.cache, self.linear = {}, nn.Linear(4, 4)

    def forward(self, x):
        length = x.shape[1]
        if length not in self.cache:
            self.cache[length] = torch.linspace(0, 1, length)
        return self.linear(x) + self.cache[length][:, None]


def test_part_with_a_table_of_sizes_stays_whole():
    model = Calling(Caching())
    chain = cut(model, torch.randn(3, 9, 4))
    for length in (9, 5, 20):
        agrees(model, chain, torch.randn(3, length, 4))


@pytest.mark.parametrize(
    ("length", "number"),
    [(19, lambda n: int(n * 0.25)), (19, lambda n: min(5, int(n * 0.5))), (12, lambda n: max(1, int(0.1 * n)))],
)
def test_length_that_is_computed_with_out_of_sight_is_fixed(length, number):
    model = Calling(lambda x: x.topk(number(x.shape[1]), 1).values)
    chain = cut(model, torch.randn(3, length, 4))
    agrees(model, chain, torch.randn(3, length, 4))
    with pytest.raises(RunError, match="recorded for"):
        chain(torch.randn(3, 2 * length, 4))


class Long(nn.Module):
    """Takes another branch for short inputs."""

    def __init__(self):
        super().__init__()
        self.embedding, self.last = nn.Embedding(5, 4), nn.Linear(4, 2)

    def forward(self, tokens):
        hidden = self.embedding(tokens)
        if tokens.size(1) > 8:
            hidden = hidden * 2
        return self.last(hidden)


def test_branch_for_short_inputs_leaves_others_of_any_length():
    model = Long()
    chain = cut(model, torch.randint(5, (3, 12)))
    agrees(model, chain, torch.randint(5, (3, 17)))
    with pytest.raises(RunError, match="takes another branch"):
        chain(torch.randint(5, (3, 4)))


def test_hooks_of_a_sequential_model_are_kept():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    model.register_forward_pre_hook(lambda _module, args: (args[0] * 2,))
    agrees(model, cut(model), torch.randn(3, 4))


def test_gamma_distribution_is_no_constant():
    """If it were, every layer that uses the sample would draw its own."""

    class Drawing(Calling):
        def forward(self, x):
            drawn = torch._standard_gamma(torch.full((4,), 2.0))
            return super().forward(x * drawn) + drawn[:2]

    model = Drawing(torch.relu)
    agrees(model, cut(model), torch.randn(3, 4))


def test_input_of_another_shape_ends_the_run():
    with pytest.raises(RunError, match=r"shape \(3, 5\), but the forward was recorded for \(any, 4\)"):
        cut(Skip())(torch.randn(3, 5))


class Answers(nn.Module):
    """Takes its inputs by name, and returns a dict."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(9, 4)
        self.head = nn.Linear(4, 9)
        self.unused = nn.Linear(2, 2)

    def forward(self, mask=None, *, ids):
        hidden = self.embedding(ids) * mask[..., None]
        return {"hidden": hidden, "logits": self.head(hidden)}


def test_inputs_go_by_name_and_sequence_logits_to_the_loss():
    model = Answers()
    ids, mask = torch.randint(9, (4, 6)), torch.ones(4, 6)
    chain = chain_of(model, {"ids": ids, "mask": mask})
    assert [note.partition(";")[0] for note in chain.notes] == [
        "model: of what Answers returns, `logits` goes to the loss"
    ]
    short = ids[:2, :3], mask[:2, :3]
    assert torch.equal(chain(*short), model(ids=short[0], mask=short[1])["logits"])
    assert set(model.state_dict()) == {name for i in range(len(chain)) for name in chain.names(i).values()}
    assert chain_of(model, {"ids": ids, "mask": mask}, "hidden")(*short).shape == (2, 3, 4)


X = torch.zeros(4, 4)


@pytest.mark.parametrize(
    ("build", "arguments", "message"),
    [
        (Answers, ({"tokens": X.long()},), r"tokens .* Answers\.forward, which takes mask, ids"),
        (lambda: nn.Sequential(nn.Linear(2, 2)), ((), "logits"), r"model\.output=logits: a Sequential passes"),
        (Skip, ((X,), "logits"), r"model\.output=logits: Skip returns a single tensor"),
        (Skip, (), "Skip cannot be cut"),
    ],
)
def test_inputs_and_outputs_that_a_model_does_not_have_are_refused(build, arguments, message):
    assert_refused(message, chain_of, build(), *arguments)


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        return x + self.o(F.scaled_dot_product_attention(q, k, v))


class Wide(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 8 * width), nn.Linear(8 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


def test_no_cut_is_where_much_more_crosses_than_beside_it():
    blocks = nn.ModuleList([Attention(8), Wide(8), Attention(8), Wide(8)])

    class Blocks(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.blocks = nn.Linear(8, 8), blocks

        def forward(self, x):
            x = self.stem(x)
            for block in self.blocks:
                x = block(x)
            return x

    chain = chain_of(Blocks(), (torch.randn(4, 5, 8),))
    starts = [label.removeprefix("blocks.") for label in chain.labels]
    assert {"0.q", "1.up", "2.q", "3.up"} <= set(starts)
    assert not [label for label in starts if label.endswith(("v", "down"))]


def test_weight_that_two_layers_share_makes_a_pair():
    model = Calling(lambda x, first, second: second(torch.relu(first(x))), *[nn.Linear(4, 4)] * 2)
    assert cut(model).tied() == [(1, 2)]


def test_recording_leaves_another_thread_alone():
    """The other thread trains from within the recorded forward, the main thread waiting, and after it."""

    def train():
        layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        with torch.no_grad():
            for weight in layers.parameters():
                weight.copy_(torch.linspace(-1, 1, weight.numel()).view_as(weight))
        with torch.autocast("cpu", torch.bfloat16):
            Straight.apply(layers(torch.ones(2, 4))).float().sum().backward()
        return [weight.grad for weight in layers.parameters()]

    expected, found = train(), Queue()  # whose contents are no state of the model

    def elsewhere(x):
        for _ in range(2):
            thread = Thread(target=lambda: found.put(train()))
            thread.start()
            thread.join()
        return Straight.apply(x)

    plain = cut(Calling(Straight.apply))
    chain = cut(Calling(elsewhere))
    assert [layer._programs[True].__code__.co_code for layer in chain.layers] == [
        layer._programs[True].__code__.co_code for layer in plain.layers
    ]
    assert not found.empty()
    while not found.empty():
        assert all(torch.equal(a, b) for a, b in zip(found.get(), expected, strict=True))


def test_two_threads_cut_one_after_the_other():
    chains = []
    threads = [Thread(target=lambda: chains.append(cut(Skip()))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [chain.labels for chain in chains] == [["first", "second", "third", "last"]] * 2
    assert nn.Module.__call__ is nn.Module._wrapped_call_impl


class Counting(nn.Module):
    """Multiplies its output with a count of its calls, which is no buffer."""

    def __init__(self, count):
        super().__init__()
        self.first, self.last, self.calls = nn.Linear(4, 4), nn.Linear(4, 4), count

    def forward(self, x):
        self.calls += 1
        return self.last(self.first(x).relu()) * (self.calls / 10)


@pytest.mark.parametrize("count", [torch.zeros(()), nn.Parameter(torch.zeros(()), requires_grad=False)])
def test_forward_that_changes_what_is_no_buffer_stays_in_one_layer(count):
    x = torch.randn(5, 4)
    assert_refused(r"Counting cannot be cut .* changes calls", chain_of, Counting(count), (x,))
    chain = chain_of(Outer(Counting(count)), (x,))
    assert len(chain) == 2


class Iterating(nn.Module):
    """Multiplies its output with what an iterator gives."""

    def __init__(self):
        super().__init__()
        self.first, self.last, self.steps = nn.Linear(4, 4), nn.Linear(4, 4), iter(range(1000))

    def forward(self, x):
        return self.last(self.first(x).relu() * (1 + next(self.steps)))


def test_iterator_that_a_forward_takes_from_is_named():
    assert_refused("the forward changes Python state: it changes the attribute `steps`", cut, Iterating())


class Listing(nn.Module):
    """Has its buffer in a list, too."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))
        self.statistics = [self.mean]

    def forward(self, x):
        hidden = self.first(x)
        with torch.no_grad():
            self.mean.lerp_(hidden.mean(0), 0.1)
        return self.last(hidden - self.statistics[0].clone())


def test_buffer_that_is_in_a_list_as_well_may_change():
    x, plain = torch.randn(5, 4), Listing()
    model = copy.deepcopy(plain)
    chain = chain_of(model, (x,))
    assert len(chain) == 2
    assert torch.equal(model.mean, torch.zeros(4))
    assert torch.equal(chain(x), plain(x))
    assert torch.equal(model.mean, plain.mean)


class Outer(nn.Module):
    def __init__(self, inside):
        super().__init__()
        self.inside, self.head = inside, nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.inside(x))


class Packing(nn.Module):
    """Runs an LSTM over the tokens of each sample."""

    def __init__(self):
        super().__init__()
        self.table, self.rnn = nn.Embedding(10, 8), nn.LSTM(8, 4, batch_first=True)

    def forward(self, ids):
        lengths = (ids != 0).sum(1).clamp(min=1)
        packed = pack_padded_sequence(self.table(ids), lengths, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.rnn(packed)[0], batch_first=True, total_length=ids.shape[1])[0].mean(1)


def test_packed_sequences_stay_inside_of_a_submodule():
    ids = torch.arange(30).reshape(5, 6) % 9 + 1
    ids[1:, 4:] = 0
    chain = chain_of(Outer(Packing()), (ids,))
    assert len(chain) == 2
    assert torch.equal(chain(ids), chain.module(ids))
    assert_refused("Packing cannot be cut .* PackedSequence", chain_of, Packing(), (ids,))


class LookingUp(nn.Module):
    """Scales its input by a number that depends on its width."""

    def __init__(self):
        super().__init__()
        self.first, self.last, self.scales = nn.Linear(4, 4), nn.Linear(4, 4), {4: 0.5, 8: 0.25}

    def forward(self, x):
        return self.last(self.first(x) * self.scales[x.shape[1]])


def test_table_that_is_looked_up_by_a_size_is_named():
    x = torch.randn(5, 4)
    chain = chain_of(Outer(LookingUp()), (x,))
    assert [note.partition(",")[0] for note in chain.notes] == ["model: each LookingUp is part of one layer"]
    assert_refused(r"LookingUp cannot be cut .*up by a size \(", chain_of, LookingUp(), (x,))
