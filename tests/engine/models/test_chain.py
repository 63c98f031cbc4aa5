"""A model as a chain of layers."""

from functools import partial

from support.refusals import assert_refused
from torch import nn

from pipetrain.engine.models.chain import LayerChain


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
