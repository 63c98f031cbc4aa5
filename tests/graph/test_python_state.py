"""Forwards that change what Python keeps, or draw numbers from Python's or numpy's generators: never frozen."""

import random
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.quick_cases import every
from support.refusals import assert_refused
from torch import nn

from pipetrain.engine.errors import ConfigError
from pipetrain.graph.conversion import chain_of, check_cut
from pipetrain.graph.python_state import ChangeWatcher
from pipetrain.graph.tracing import Tracer

X = torch.linspace(-1, 1, 20).view(5, 4)
calls = 0
generator = np.random.default_rng(0)


class Part(nn.Module):
    """A function between two linear layers; it gets the module and its input."""

    def __init__(self, function, **attributes):
        super().__init__()
        self.up, self.down = nn.Linear(4, 4), nn.Linear(4, 4)
        self.function = function
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, x):
        return self.down(self.function(self, self.up(x)))


class Whole(nn.Module):
    """A model with such a part."""

    def __init__(self, part):
        super().__init__()
        self.first, self.part, self.last = nn.Linear(4, 4), part, nn.Linear(4, 2)

    def forward(self, x):
        return self.last(torch.relu(self.part(torch.relu(self.first(x)))))


def counts(module, x):
    module.t += 1
    return x * min(1, module.t / 100)


def counts_in_a_list(module, x):
    module.t[0] += 1
    return x * module.t[0]


def counts_in_an_object(module, x):
    module.state.t += 1
    return x * module.state.t


def counts_globally(_module, x):
    global calls
    calls += 1
    return x


def skips(_module, x):
    return x if random.random() < 0.5 else -x


def scales(_module, x):
    return x * float(np.random.randn())


def draws_from_a_global(_module, x):
    return x * generator.random()


def draws_from_its_own(module, x):
    return x * module.generator.random()


def assigns_a_buffer(module, x):
    module.mean = 0.9 * module.mean + 0.1 * x.detach().mean()
    return x - module.mean


def assigns_a_tensor(module, x):
    module.mean = 0.9 * module.mean + 0.1 * x.detach().mean()
    return x - module.mean


def continues(module, x):
    x = x if module.last is None else x + module.last.mean()
    module.last = x.detach()
    return x


def with_buffer(part):
    part.register_buffer("mean", torch.zeros(()))
    return part


CASES = {
    "counter": (lambda: Part(counts, t=0), r"changes the attribute `t`"),
    "list": (lambda: Part(counts_in_a_list, t=[0]), r"changes the attribute `t`"),
    "object": (lambda: Part(counts_in_an_object, state=SimpleNamespace(t=0)), r"changes the attribute `state`"),
    "random": (lambda: Part(skips), r"draws numbers from random"),
    "numpy": (lambda: Part(scales), r"draws numbers from numpy\.random"),
    "own generator": (
        lambda: Part(draws_from_its_own, generator=random.Random(1)),
        r"changes the attribute `generator`",
    ),
    "buffer": (
        lambda: with_buffer(Part(assigns_a_buffer)),
        r"assigns another tensor to the buffer `mean` instead of writing into it",
    ),
    "tensor": (lambda: Part(assigns_a_tensor, mean=torch.zeros(())), r"changes the attribute `mean`"),
    "state": (lambda: Part(continues, last=None), r"changes the attribute `last`"),
}


@pytest.mark.parametrize("case", CASES)
def test_model_with_python_state_or_draws_is_refused(case):
    build, reason = CASES[case]
    before = random.getstate(), np.random.get_state()[1].tolist()
    assert_refused(rf"Part cannot be cut .*changes Python state: it {reason}; move this into", chain_of, build(), (X,))
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


@pytest.mark.parametrize("case", every(2, CASES))
def test_part_with_python_state_or_draws_stays_in_one_layer(case):
    build, reason = CASES[case]
    torch.manual_seed(0)
    model = Whole(build())
    chain = chain_of(model, (X,))
    assert chain.labels == ["first", "part.down", "last"]
    assert re.fullmatch(rf"model: each Part is part of one layer, as the forward .* it {reason}", *chain.notes)
    check_cut(chain, (X,), None, 0)
    results = [chain(X) for _ in range(3)]
    assert not torch.equal(results[1], results[2]) or case == "random"


@pytest.mark.parametrize("case", CASES)
def test_comparison_alone_refuses_layers_that_froze_state_or_draws(case, monkeypatch):
    monkeypatch.setattr(ChangeWatcher, "compare", lambda *_: None)
    monkeypatch.setattr(Tracer, "_compared", lambda *_: (False, None))
    random.seed(0)
    chain = chain_of(CASES[case][0](), (X,))
    assert_refused("in training, its layers give different", check_cut, chain, (X,), None, 0)


class Skipping(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return x if random.random() < 0.5 else self.linear(x)


@pytest.mark.parametrize("seed", every(2, range(4)))
def test_part_recorded_returning_its_input_may_return_another(seed):
    model = Part(lambda module, x: module.part(x) + x, part=Skipping())
    random.seed(seed)
    chain = chain_of(model, (X,))
    assert len(chain) == 3
    for each in range(4):
        check_cut(chain, (X,), None, each)


@pytest.mark.parametrize(("function", "name"), [(counts_globally, "calls"), (draws_from_a_global, "generator")])
def test_global_that_a_part_changes_is_refused(function, name):
    assert_refused(rf"Whole cannot .* global [^ ]*test_python_state\.{name};", chain_of, Whole(Part(function)), (X,))


class Counting(nn.Module):
    """Without children, so that it is called as a whole anyhow."""

    def __init__(self):
        super().__init__()
        self.t = 0

    def forward(self, x):
        self.t += 1
        return x * self.t * random.random()


def test_module_called_whole_may_keep_and_draw_anything():
    model = Part(lambda module, x: module.counting(x), counting=Counting())
    chain = chain_of(model, (X,))
    assert (chain.labels, chain.notes) == (["up", "down"], [])
    chain(X)
    assert model.counting.t == 1


def test_attribute_that_another_module_changes_is_seen():
    def changes_another(module, x):
        module.counting.t += 1
        return module.counting(x)

    with pytest.raises(ConfigError, match=r"Part cannot be cut .* the attribute `t`"):
        chain_of(Part(changes_another, counting=Counting()), (X,))


def caches(module, x):
    if module.cache is None or module.cache.shape[0] < x.shape[1]:
        module.cache = torch.arange(8.0)
    return x + module.cache[: x.shape[1]]


def shows(module, x):
    module.attention = x.softmax(-1)
    module.shape = x.shape
    module.history.append(x.detach())
    return x * module.attention


@pytest.mark.parametrize("part", [Part(caches, cache=None), Part(shows, attention=None, history=[])])
def test_what_is_kept_and_changes_no_result_is_let_be(part):
    torch.manual_seed(0)
    chain = chain_of(part, (X,))
    assert (chain.labels, chain.notes) == (["up", "down"], [])
    check_cut(chain, (X,), None, 0)
    assert torch.equal(chain(X), part(X))


def normalizes(module, x):
    if not module.known:
        module.known, module.scale = True, x.detach().std()
    return x / module.scale


def test_deviating_first_call_is_found_in_training():
    model = Part(normalizes, known=False, scale=None)
    assert_refused("in training, its layers give different", check_cut, chain_of(model, (X,)), (X,), None, 0)
    assert not model.known
    assert len(chain_of(Whole(Part(normalizes, known=False, scale=None)), (X,))) == 3


def test_hooks_spectral_norm_and_written_buffers_are_accepted():
    def averages(module, x):
        module.mean += 0.1 * x.detach().mean()
        return x - module.mean

    model = with_buffer(Part(averages))
    nn.utils.spectral_norm(model.up)
    model.down.register_forward_hook(
        lambda module, _inputs, output: setattr(module, "seen", 1 + vars(module).get("seen", 0)) or output * 2
    )
    chain = chain_of(model, (X,))
    assert (len(chain), chain.notes) == (2, [])
    check_cut(chain, (X,), None, 0)
