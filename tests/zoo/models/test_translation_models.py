"""What the models of translation promise, whatever their family."""

import pytest
import torch
from support.pipelines import assert_cuts_keep_gradients

from pipetrain.zoo.models import gnmt, transformer

SOURCE = torch.tensor([[4, 5, 6, 7, 2], [8, 9, 2, 0, 0], [5, 2, 0, 0, 0]])
TARGET = torch.tensor([[1, 9, 8, 7], [1, 4, 0, 0], [1, 5, 6, 0]])
BUILDS = {
    "transformer": lambda **options: transformer.build(
        12, 14, **{"layers": 2, "width": 16, "feedforward": 24, "heads": 4, "dropout": 0.0, **options}
    ),
    "gnmt": lambda **options: gnmt.build(12, 14, **{"layers": 6, "width": 16, "dropout": 0.0, **options}),
}


@pytest.fixture(params=BUILDS)
def build(request):
    torch.manual_seed(0)
    return BUILDS[request.param]


def test_layers_compute_what_the_module_computes(build):
    chain = build()
    scores = chain(SOURCE, TARGET)
    assert scores.shape == (3, 4, 14)
    assert torch.equal(scores, chain.module(SOURCE, TARGET))


def test_cuts_between_all_layers_do_not_change_the_gradients(build):
    assert_cuts_keep_gradients(build(), SOURCE, TARGET)


def test_scores_are_independent_of_padding_and_other_samples(build):
    chain = build()
    together = chain(SOURCE, TARGET)
    torch.testing.assert_close(chain(SOURCE[1:2, :3], TARGET[1:2, :2]), together[1:2, :2])


def test_scores_of_a_position_do_not_depend_on_later_tokens(build):
    chain = build()
    changed = TARGET.clone()
    changed[:, 2:] = 3
    torch.testing.assert_close(chain(SOURCE, changed)[:, :2], chain(SOURCE, TARGET)[:, :2])


@torch.no_grad()
def test_search_steps_give_the_scores_of_the_whole_prefix(build):
    module = build().module.eval()
    state, expected = module.begin(SOURCE), module(SOURCE, TARGET)
    for position in range(TARGET.shape[1]):
        scores, state = module.step(TARGET[:, position], state)
        torch.testing.assert_close(scores, expected[:, position])
        assert {len(tensor) for tensor in state} == {3}


@torch.no_grad()
def test_search_may_drop_and_repeat_samples_between_steps(build):
    module = build().module.eval()
    rows = torch.tensor([2, 0, 0])
    _, state = module.step(TARGET[:, 0], module.begin(SOURCE))
    scores, _ = module.step(TARGET[rows, 1], tuple(tensor.index_select(0, rows) for tensor in state))
    torch.testing.assert_close(scores, module(SOURCE, TARGET)[rows, 1])


def test_dropout_of_the_setting_is_at_work_in_training_alone(build):
    chain = build(dropout=0.5)
    torch.manual_seed(1)
    first = chain(SOURCE, TARGET)
    assert not torch.equal(first, chain(SOURCE, TARGET))
    chain.module.eval()
    assert torch.equal(chain(SOURCE, TARGET), chain(SOURCE, TARGET))
