"""Weights that layers share: which they are, and how they become separate."""

import torch
from support import tied_model
from support.refusals import assert_refused
from torch import nn

from pipetrain.engine.models.chain import LayerChain
from pipetrain.engine.models.ties import layers_of_stage, tied_weights, ties_between, untie

SHARED = "encoder.linear.weight"


def test_weight_ties_only_the_stages_that_hold_it():
    chain = tied_model.build(1, 4)
    (tie,) = ties_between(chain, [(0, 3), (3, 5), (5, 7)])
    assert (tie.name, tie.stages) == (SHARED, (0, 2))
    assert str(tie) == f"{SHARED} is in stages 0 and 2"
    assert ties_between(chain, [(0, 1), (1, 7)]) == ()


def test_later_stage_layers_copy_only_the_shared_weight():
    chain = tied_model.build(1, 4)
    *_, block, decoder = layers_of_stage(chain, (2, 7), {SHARED})
    assert decoder.weight is not chain.layers[6].weight
    assert torch.equal(decoder.weight, chain.layers[6].weight)
    assert decoder.classes.weight is chain.layers[6].classes.weight
    assert block.linear.weight is chain.layers[5].linear.weight


def test_untied_weights_have_equal_values_and_names_of_their_own():
    chain = tied_model.build(1, 4)
    untie(chain)
    assert tied_weights(chain) == {}
    assert chain.tied() == []
    state = chain.module.state_dict(keep_vars=True)
    assert state["decoder.weight"] is not state[SHARED]
    assert torch.equal(state["decoder.weight"], state[SHARED])
    assert chain.untied == {"decoder.weight": SHARED}
    assert chain.names(6)["weight"] == "decoder.weight"


def test_module_that_is_two_layers_cannot_be_untied():
    linear = nn.Linear(2, 2)
    chain = LayerChain.of_sequential(nn.Sequential(linear, nn.Tanh(), linear))
    assert_refused(r"layers 0 \(0:Linear\) and 2 \(2:Linear\) share the module of 0", untie, chain)
