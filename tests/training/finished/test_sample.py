"""Text that a language model makes up."""

import json
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from support.texts import prose
from support.worker_pool import job, plan_of, simulated

from pipetrain.data.vocabulary import CharacterVocabulary
from pipetrain.errors import ConfigError
from pipetrain.models import gpt
from pipetrain.tracking.stored_settings import parse_overrides
from pipetrain.training.checkpoint.store import Selection
from pipetrain.training.finished.sample import Sampling, _pieces, generate, sample

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


def test_run_on_a_gpu_is_sampled_without_one_from_text_elsewhere(tmp_path, monkeypatch):
    text = tmp_path / "novel.txt"
    text.write_text(prose(40), encoding="utf-8")
    dataset = {"_target_": "pipetrain.data.text.text_files.text_file", "path": str(text), "positions": 8}
    model = {"_target_": "pipetrain.models.gpt.build", "layers": 1, "width": 8, "heads": 1}
    loss = {"_target_": "pipetrain.losses.TokenCrossEntropy"}
    made = job(tmp_path / "run", "gpipe", 1, dataset=dataset, model=model, loss=loss, train={"max_steps": 1})
    simulated(replace(made, plan=plan_of([(0, 4)])))
    made.run.config.write_text(json.dumps({**made.settings.stored, "device": "cuda"}))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    def sampled(*words):
        _, pieces = sample(Selection(made.run.path), "The cat", Sampling(length=1), parse_overrides(words))
        return "".join(pieces)

    with pytest.raises(ConfigError, match="device=cuda: torch finds no CUDA device here; device=cpu works"):
        sampled()
    moved = text.rename(tmp_path / "moved.txt")
    assert sampled("device=cpu", f"dataset.path={moved}").startswith("The cat")
