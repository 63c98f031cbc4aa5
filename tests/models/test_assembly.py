"""A whole model with the weights and buffers of all stages."""

import torch
from support import small_model
from torch import nn

from pipetrain.models.assembly import assembled
from pipetrain.models.chain import LayerChain

CPU = torch.device("cpu")


def test_assembled_model_computes_with_the_state_and_leaves_the_chain_as_it_is():
    torch.manual_seed(0)
    chain, other = small_model.build(1, 4), small_model.build(1, 4)
    before = {name: tensor.clone() for name, tensor in chain.module.state_dict().items()}
    whole = assembled(chain, other.module.state_dict(), CPU)
    for layer in other.layers:
        layer.eval()
    images = torch.randn(3, 1, 8, 8)
    with torch.no_grad():
        assert torch.equal(whole(images), other(images))
        assert not torch.equal(whole(images), chain(images))
    assert chain.module.training
    assert all(layer.training for layer in chain.layers)
    assert all(torch.equal(before[name], tensor) for name, tensor in chain.module.named_parameters())


def test_assembled_model_holds_the_tensors_of_the_state_and_no_copies():
    chain = small_model.build(1, 4)
    state = small_model.build(1, 4).module.state_dict()
    held = assembled(chain, state, CPU).module.state_dict()
    assert {name: tensor.data_ptr() for name, tensor in held.items()} == {
        name: tensor.data_ptr() for name, tensor in state.items()
    }


def test_tied_weights_stay_tied_and_buffers_that_no_state_has_are_kept():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    model[0].register_buffer("positions", torch.arange(3.0), persistent=False)
    state = {name: torch.ones_like(value) for name, value in model.state_dict().items()}
    state["1.weight"] = state["0.weight"]
    model[1]._parameters["weight"] = torch.zeros(3, 3)  # as a stage lends it
    whole = assembled(LayerChain(model, list(model)), state, CPU)
    assert whole.module[0].weight is whole.module[1].weight
    assert whole.module[1].weight.sum() == 9
    assert whole.layers[1] is whole.module[1]
    assert torch.equal(whole.module[0].positions, torch.arange(3.0))
