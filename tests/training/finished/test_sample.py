"""Text that a language model makes up."""

import re
from types import SimpleNamespace

import pytest
import torch

from pipetrain.data.vocabulary import CharacterVocabulary
from pipetrain.errors import ConfigError
from pipetrain.models import gpt
from pipetrain.training.finished.sample import Sampling, _pieces, generate

SCORES = torch.tensor([1.0, 3.0, 2.0, 0.0])


def draws(sampling, count=200):
    generator = torch.Generator().manual_seed(sampling.seed)
    return [sampling.choose(SCORES, generator) for _ in range(count)]


def test_temperature_zero_takes_the_likeliest_token():
    assert set(draws(Sampling(temperature=0.0))) == {1}


def test_only_the_likeliest_tokens_are_drawn_where_asked_for():
    assert set(draws(Sampling(top_k=2))) == {1, 2}
    assert set(draws(Sampling(temperature=5.0))) == {0, 1, 2, 3}
    assert set(draws(Sampling(top_k=9, temperature=5.0))) == {0, 1, 2, 3}


def test_draws_depend_on_the_seed_alone():
    assert draws(Sampling(seed=3)) == draws(Sampling(seed=3)) != draws(Sampling(seed=4))


@pytest.mark.parametrize(
    ("options", "flag"),
    [({"length": 0}, "--length=0"), ({"temperature": -1.0}, "--temperature=-1"), ({"top_k": 0}, "--top-k=0")],
)
def test_numbers_out_of_range_are_refused_by_their_flag(options, flag):
    with pytest.raises(ConfigError, match=flag):
        Sampling(**options)


def test_model_continues_from_its_last_known_tokens():
    torch.manual_seed(0)
    model = gpt.build(20, 8, layers=1, width=8, heads=1)
    model.module.eval()
    sampling = Sampling(length=12, temperature=0.0)
    found = list(generate(model, [1, 2, 3], sampling, 8, 15))
    ids = [1, 2, 3, *found]
    with torch.no_grad():
        for end in range(3, 15):
            scores = model.module(torch.tensor([ids[max(0, end - 8) : end]]))[0, -1]
            assert ids[end] == scores[:15].argmax()
    assert len(found) == 12


@pytest.mark.parametrize("shape", [(1, 4), (1, 3, 14), (1, 1, 20)])
def test_model_that_scores_no_tokens_is_refused(shape):
    model = gpt.build(20, 8, layers=1, width=8, heads=1)
    model.layers[:] = [lambda _ids: torch.zeros(shape)]
    expected = f"returns {shape}, not scores of shape (1, 3, at least 15); sample takes runs of language models"
    with pytest.raises(ConfigError, match=re.escape(expected)):
        next(generate(model, [1, 2, 3], Sampling(), 8, 15))


def test_text_comes_in_pieces_of_whole_characters():
    whole = CharacterVocabulary("abc")
    assert list(_pieces(whole, [0, 1], iter([2, 0]))) == ["ab", "c", "a", ""]
    halves = SimpleNamespace(decode=lambda ids: bytes(ids).decode(errors="replace"))
    assert [piece for piece in _pieces(halves, [97], iter("é!".encode())) if piece] == ["a", "é", "!"]
