"""S2VT as a chain, and a word at a time."""

import pytest
import torch

from pipetrain.zoo.models.s2vt import build


@pytest.fixture
def chain():
    torch.manual_seed(0)
    made = build(features=6, vocabulary_size=9, hidden=5, embedding=4)
    for layer in made.layers:
        layer.eval()
    return made


def test_chain_and_module_compute_the_same_logits_for_each_word(chain):
    frames, words = torch.randn(2, 3, 6), torch.randint(9, (2, 4))
    logits = chain(frames, words)
    assert logits.shape == (2, 4, 9)
    assert torch.equal(chain.module(frames, words), logits)


def test_word_at_a_time_gives_the_logits_of_the_whole_caption(chain):
    frames, words = torch.randn(3, 4, 6), torch.randint(9, (3, 5))
    state = chain.module.begin(frames)
    assert all(len(tensor) == 3 for tensor in state)
    for position, logits in enumerate(chain(frames, words).unbind(1)):
        found, state = chain.module.step(words[:, position], state)
        assert torch.allclose(found, logits, atol=1e-6)


def test_padding_behind_a_caption_changes_none_of_its_words(chain):
    frames, words = torch.randn(1, 3, 6), torch.tensor([[1, 5, 6, 0, 0]])
    assert torch.allclose(chain(frames, words)[:, :3], chain(frames, words[:, :3]), atol=1e-6)


def test_parameters_are_those_of_the_papers_sizes():
    # 2 · 4 · 1000 biases each; inputs of 500, and of 1000 + 500 numbers; features of VGG-16's fc7
    chain = build(features=4096, vocabulary_size=100, hidden=1000, embedding=500)
    lstm = [4000 * (size + 1000) + 8000 for size in (500, 1500)]
    expected = (4096 + 1) * 500 + 100 * 500 + sum(lstm) + (1000 + 1) * 100
    assert sum(parameter.numel() for parameter in chain.module.parameters()) == expected
