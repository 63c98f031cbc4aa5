"""A user's module as a chain of layers."""

import pytest
import torch
from support.refusals import assert_refused
from torch import nn

from pipetrain.graph.conversion import chain_of


def test_sequential_equals_chain_of_its_children():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    chain = chain_of(model)
    x = torch.randn(5, 3)
    assert len(chain) == 3
    assert chain.labels == ["0:Linear", "1:ReLU", "2:Linear"]
    assert torch.equal(chain(x), model(x))


def test_module_that_appears_twice_is_two_layers():
    relu = nn.ReLU()
    model = nn.Sequential(nn.Linear(3, 3), relu, nn.Linear(3, 3), relu)
    chain = chain_of(model)
    x = torch.randn(2, 3)
    assert len(chain) == 4
    assert torch.equal(chain(x), model(x))


class Wrapped(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(x)


def test_tuple_between_children_is_one_argument():
    class Fork(nn.Module):
        def forward(self, x):
            return x, 2 * x

    class Join(nn.Module):
        def forward(self, pair):
            return pair[0] + pair[1]

    model = nn.Sequential(Fork(), Join())
    x = torch.ones(2)
    assert torch.equal(chain_of(model)(x), model(x))


def test_activations_of_a_users_model_stay_in_place():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True), nn.Sequential(nn.Hardtanh(inplace=True)))
    chain_of(model)
    chain_of(Wrapped(model), (torch.randn(5, 2),))
    assert model[1].inplace
    assert model[2][0].inplace


def compiled(module):
    """As torch.compile wraps a module, without the seconds that its import takes."""
    wrapper = nn.Module()
    wrapper._orig_mod = module
    return wrapper


REFUSED = {
    "a torch.jit module cannot be cut": lambda: torch.jit.script(nn.Sequential(nn.Linear(2, 2))),
    "a model compiled as a whole cannot be cut": lambda: compiled(nn.Linear(2, 2)),
    "1.weight of Sequential has no shape yet": lambda: nn.Sequential(nn.Linear(2, 2), nn.LazyLinear(2)),
    "net.0.weight of Wrapped has no shape yet": lambda: Wrapped(nn.Sequential(nn.LazyLinear(2))),
}


@pytest.mark.parametrize("error", REFUSED)
def test_model_without_weights_or_a_forward_in_python_is_refused(error):
    assert_refused(error, chain_of, REFUSED[error](), (torch.randn(5, 2),))


def test_chain_of_a_chain_is_the_chain():
    chain = chain_of(nn.Sequential(nn.Linear(2, 2)))
    assert chain_of(chain) is chain


class Rewired(nn.Sequential):
    def forward(self, x):
        return x


@pytest.mark.parametrize("model", [nn.Linear(2, 2), Rewired(nn.Linear(2, 2)), None])
def test_module_that_is_no_chain_is_refused_with_what_works(model):
    assert_refused(r"nn\.Sequential .*LayerChain", chain_of, model)
