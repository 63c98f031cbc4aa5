"""The texts that are generated for the samples of a data set, and what is measured of them."""

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from pipetrain.data.decoding import DecodingOptions
from pipetrain.engine.errors import ConfigError
from pipetrain.zoo.decoding import Generation, SpecialTokens
from pipetrain.zoo.decoding.generation import bleu, meteor

WORDS = ["<pad>", "<s>", "</s>", "one", "two", "three", "four"]
MARKS = SpecialTokens(beginning=1, end=2)


class Echo(nn.Module):
    """Repeats its source, a token at a time."""

    def begin(self, source):
        self.batch = source.shape
        return source, torch.zeros(len(source), dtype=torch.int64)

    def step(self, _tokens, state):
        source, position = state
        position = position.clamp(max=source.shape[1])
        following = torch.cat([source, torch.full((len(source), 1), MARKS.end)], 1).gather(1, position[:, None])[:, 0]
        following = following.masked_fill(following == MARKS.padding, MARKS.end)
        return nn.functional.one_hot(following, len(WORDS)) * 9.0, (source, position + 1)


class Endless(nn.Module):
    """Says one word for ever."""

    def begin(self, source):
        return (source,)

    def step(self, tokens, state):
        return nn.functional.one_hot(torch.full_like(tokens, 3), len(WORDS)) * 9.0, state


SOURCES = [(torch.tensor(ids),) for ids in ([3, 4, 5, 6], [4], [5, 6, 3], [3, 3, 4, 6, 5])]
TEXTS = ["one two three four", "two", "three four one", "one one two four three"]
GENERATION = Generation(
    SOURCES, [[text] for text in TEXTS], lambda ids: " ".join(WORDS[i] for i in ids), MARKS, longest=6
)
MODEL = SimpleNamespace(module=Echo())


def test_texts_come_in_the_order_of_the_samples():
    assert GENERATION.texts(MODEL, DecodingOptions(beam_width=2, batch_size=3)) == TEXTS


def test_samples_of_about_the_same_length_share_a_minibatch():
    told = []
    GENERATION.texts(MODEL, DecodingOptions(beam_width=1, batch_size=2, on_progress=told.append))
    assert told == ["decoding 1 of 2", "decoding 2 of 2"]
    assert MODEL.module.batch == (2, 5)  # the last of the two: the longest sources


def test_sources_are_read_once_for_their_lengths_and_once_for_their_texts():
    class Read(list):
        def __getitem__(self, index):
            read.append(index)
            return super().__getitem__(index)

    read = []
    replace(GENERATION, sources=Read(SOURCES)).texts(MODEL, DecodingOptions(beam_width=1, batch_size=2))
    assert sorted(read) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_limit_leaves_the_later_samples_out():
    assert GENERATION.texts(MODEL, DecodingOptions(limit=2)) == TEXTS[:2]


def test_bleu_of_identical_texts_is_100_with_signature():
    found = GENERATION.measure(MODEL, DecodingOptions(beam_width=2, length_penalty=0.6))
    assert found["bleu"].value == pytest.approx(100.0)
    assert "nrefs:1|case:mixed" in found["bleu"].signature
    assert found["bleu"].signature.endswith("|beam:2|length_penalty:0.6|form:fairseq")


def test_length_of_a_text_is_limited_by_that_of_its_source():
    endless = replace(GENERATION, longest=30, longest_by_source=0.5)
    model = SimpleNamespace(module=Endless())
    assert [len(text.split()) for text in endless.texts(model, DecodingOptions(beam_width=1))] == [12, 10, 11, 12]


def test_texts_are_told_beside_their_references():
    told = []
    GENERATION.measure(MODEL, DecodingOptions(on_texts=lambda *found: told.append(found), limit=1))
    assert told == [([TEXTS[0]], [[TEXTS[0]]])]


def test_several_metrics_are_measured_of_the_same_texts():
    both = replace(GENERATION, metrics=("bleu", "meteor"), references=[["one two"], ["two"], ["four"], ["one"]])
    found = both.measure(MODEL, DecodingOptions(beam_width=1))
    assert 0 < found["bleu"].value < 100
    assert 0 < found["meteor"].value < 1
    assert "greedy" in found["meteor"].signature


def test_model_that_cannot_generate_is_named_with_what_it_lacks():
    plain = SimpleNamespace(module=nn.Linear(1, 1))
    assert GENERATION.problem(plain) == "Linear has no method begin and no step to generate text with"
    assert GENERATION.problem(MODEL) is None


def test_missing_metric_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "nltk", None)
    assert GENERATION.problem(MODEL) is None
    with pytest.raises(ConfigError, match=r"METEOR needs nltk.*pip install \"pipetrain\[video\]\"; or .*decode=false"):
        replace(GENERATION, metrics=("bleu", "meteor")).problem(MODEL)


def test_bleu_is_geometric_mean_of_precisions_with_brevity():
    # 1-grams 5 of 6, 2-grams 3 of 5, 3-grams 1 of 4, 4-grams smoothed to 1 / (2 · 3); as long as the reference
    value, signature = bleu(["the cat sat on a mat"], [["the cat is on a mat"]])
    assert value == pytest.approx(100 * (5 / 6 * 3 / 5 * 1 / 4 * 1 / 6) ** 0.25)
    assert signature.startswith("nrefs:1|")


def test_texts_may_have_different_numbers_of_references():
    value, signature = bleu(["a b c d", "e f g h"], [["a b c d", "x"], ["e f g h"]])
    assert value == pytest.approx(100.0)
    assert "nrefs:var" in signature


@pytest.fixture(autouse=True)
def nltk(monkeypatch):
    """The package, without WordNet; imported here, as it takes a while and every process collects this module."""
    import nltk.corpus

    monkeypatch.setattr(nltk.data, "path", [])
    return nltk


def test_meteor_weighs_recall_nine_times_and_punishes_fragments():
    # 3 of 4 words match, in one chunk: precision 1, recall 3 / 4, penalty 0.5 · (1 / 3)³
    value, _ = meteor(["a red square"], [["a red square moves"]])
    mean = 10 * 1 * 0.75 / (0.75 + 9 * 1)
    assert value == pytest.approx(mean * (1 - 0.5 * (1 / 3) ** 3))


def test_best_reference_counts_and_texts_are_averaged():
    alone, _ = meteor(["a cat"], [["a cat"]])
    value, _ = meteor(["a cat", "no match"], [["a dog", "a cat"], ["something else"]])
    assert value == pytest.approx(alone / 2)


class WordNet:
    """A dictionary of one pair of synonyms."""

    def ensure_loaded(self):
        pass

    def synsets(self, word):
        names = ["dog", "hound"] if word in ("dog", "hound") else []
        return [SimpleNamespace(lemmas=lambda: [SimpleNamespace(name=lambda name=name: name) for name in names])]


def test_synonyms_match_where_wordnet_is_installed(nltk, monkeypatch):
    without, _ = meteor(["a dog"], [["a hound"]])
    monkeypatch.setattr(nltk.corpus, "wordnet", WordNet())
    value, signature = meteor(["a dog"], [["a hound"]])
    assert value > 0.9 > without
    assert "|matches:exact,stem,synonym" in signature


def test_equal_stems_match_and_the_signature_says_what_does():
    value, signature = meteor(["moving squares"], [["moved square"]])
    assert value > 0.9
    assert "|matches:exact,stem" in signature
    assert "synonym" not in signature
