"""A whole model with the weights and buffers of all stages."""

from functools import partial

import torch
from support import small_model
from support.refusals import assert_refused
from torch import nn

from pipetrain.engine.models.chain import LayerChain, assemble


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.norm = nn.LayerNorm(4)
        self.decoder = nn.Linear(4, 7, bias=False)
        self.decoder.weight = self.embedding.weight


def tied_chain():
    model = Tied()
    return LayerChain(model, [model.embedding, model.norm, model.decoder])


def test_names_of_a_chain_are_those_of_the_whole_state_dict():
    model = nn.Sequential()
    model.add_module("front", nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)))
    model.add_module("back", nn.Linear(4, 2))
    chain = LayerChain.of_sequential(model)
    full = [name for i in range(len(chain)) for name in chain.names(i).values()]
    assert full == list(model.state_dict())
    for i, layer in enumerate(chain.layers):
        assert list(chain.names(i)) == list(layer.state_dict())
    assert chain.labels == ["front", "back"]


def test_tied_weights_have_one_name_and_are_a_pair():
    chain = tied_chain()
    assert chain.names(2) == {"weight": "embedding.weight"}
    assert chain.tied() == [(0, 2)]
    assert chain.tied(buffers_alone=True) == []


def test_frozen_weight_ties_nothing_as_its_copies_stay_equal():
    chain = tied_chain()
    chain.module.requires_grad_(requires_grad=False)
    assert chain.tied() == []


def test_weight_tied_three_times_glues_neighboring_layers():
    shared = nn.Linear(2, 2)
    model = nn.Sequential(shared, nn.ReLU(), shared, shared)
    assert LayerChain.of_sequential(model).tied() == [(0, 2), (2, 3)]


def test_weight_layers_leave_out_norms_and_what_has_no_weights():
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Sequential(nn.Conv2d(4, 4, 3), nn.GroupNorm(2, 4)),
        nn.Flatten(), nn.LayerNorm(4), nn.Linear(4, 2),
    )  # fmt: skip
    assert LayerChain.of_sequential(model).weight_layers() == [0, 3, 6]


def test_layers_are_named_after_what_they_hold():
    chain = tied_chain()
    assert chain.labels == ["embedding", "norm", "decoder"]
    model = nn.Sequential(nn.Linear(2, 2))
    again = LayerChain(model, [nn.Sequential(nn.Flatten()), model[0], nn.Sequential(model[0])])
    assert again.labels == ["0:Sequential", "0", "0#2"]


def test_layers_that_are_not_the_model_are_refused_by_name():
    tied, linear, two = Tied(), nn.Linear(2, 2), nn.Sequential(nn.ReLU(), nn.Tanh())
    normed = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, affine=False))
    for message, model, layers in (
        (r"norm\.weight, norm\.bias of Tied is in none of its layers", tied, [tied.embedding, tied.decoder]),
        (r"1\.running_mean", normed, [normed[0]]),
        ("layer 1:Linear", linear, [linear, nn.Linear(2, 2)]),
        ("no layers", nn.Sequential(), []),
    ):
        assert_refused(message, partial(LayerChain, model, layers))
    assert_refused("2 unique labels", partial(LayerChain, two, list(two), ["a", "a"]))


CPU = torch.device("cpu")


def test_assembled_model_uses_state_and_leaves_chain_alone():
    torch.manual_seed(0)
    chain, other = small_model.build(1, 4), small_model.build(1, 4)
    before = {name: tensor.clone() for name, tensor in chain.module.state_dict().items()}
    whole = assemble(chain, other.module.state_dict(), CPU)
    for layer in other.layers:
        layer.eval()
    images = torch.randn(3, 1, 8, 8)
    with torch.no_grad():
        assert torch.equal(whole(images), other(images))
        assert not torch.equal(whole(images), chain(images))
    assert chain.module.training
    assert all(layer.training for layer in chain.layers)
    assert all(torch.equal(before[name], tensor) for name, tensor in chain.module.named_parameters())


def test_assembled_model_shares_tensors_of_the_state():
    chain = small_model.build(1, 4)
    state = small_model.build(1, 4).module.state_dict()
    held = assemble(chain, state, CPU).module.state_dict()
    assert {name: tensor.data_ptr() for name, tensor in held.items()} == {
        name: tensor.data_ptr() for name, tensor in state.items()
    }


def test_tied_weights_stay_tied_and_unsaved_buffers_are_kept():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    model[0].register_buffer("positions", torch.arange(3.0), persistent=False)
    state = {name: torch.ones_like(value) for name, value in model.state_dict().items()}
    state["1.weight"] = state["0.weight"]
    model[1]._parameters["weight"] = torch.zeros(3, 3)  # as a stage lends it
    whole = assemble(LayerChain(model, list(model)), state, CPU)
    assert whole.module[0].weight is whole.module[1].weight
    assert whole.module[1].weight.sum() == 9
    assert whole.layers[1] is whole.module[1]
    assert torch.equal(whole.module[0].positions, torch.arange(3.0))
