"""Layers that go on where their last forward ended, where they are told to."""

import torch
from support.running_text import TOKENS, build

from pipetrain.engine.models.stateful_layer import carrying_state, stateful_layers

IDS = torch.randint(0, TOKENS, (4, 6), generator=torch.Generator().manual_seed(0))


def test_carrying_model_computes_two_halves_as_the_whole():
    model = build().module.eval()
    with carrying_state(model):
        halves = [model(IDS[:, :2]), model(IDS[:, 2:])]
    torch.testing.assert_close(torch.cat(halves, dim=1), model(IDS))


def test_model_not_told_to_carry_starts_each_forward_fresh():
    model = build().module.eval()
    with carrying_state(model):
        model(IDS)
    assert torch.equal(model(IDS), model(IDS))
    assert all(carrier.carried is None for carrier in stateful_layers(model).values())


def test_carried_state_has_no_gradient_and_is_in_no_state_dict():
    model = build().module
    names = set(model.state_dict())
    with carrying_state(model):
        model(IDS)
        states = [tensor for carrier in stateful_layers(model).values() for tensor in carrier.carried]
        assert set(model.state_dict()) == names
    assert len(states) == 10
    assert not any(tensor.requires_grad for tensor in states)
    assert {tuple(tensor.shape) for tensor in states} == {(4, 6)}
