"""BLEU of a corpus."""

from types import SimpleNamespace

import nltk
import nltk.corpus
import pytest

from pipetrain.decoding.metrics import bleu, meteor


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
def _without_word_net(monkeypatch):
    monkeypatch.setattr(nltk.data, "path", [])


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


def test_synonyms_match_where_wordnet_is_installed(monkeypatch):
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
