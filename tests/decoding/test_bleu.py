"""BLEU of a corpus."""

import pytest

from pipetrain.decoding.bleu import bleu


def test_bleu_is_the_geometric_mean_of_the_precisions_and_a_brevity_penalty():
    # 1-grams 5 of 6, 2-grams 3 of 5, 3-grams 1 of 4, 4-grams smoothed to 1 / (2 · 3); as long as the reference
    value, signature = bleu(["the cat sat on a mat"], [["the cat is on a mat"]])
    assert value == pytest.approx(100 * (5 / 6 * 3 / 5 * 1 / 4 * 1 / 6) ** 0.25)
    assert signature.startswith("nrefs:1|")


def test_texts_may_have_different_numbers_of_references():
    value, signature = bleu(["a b c d", "e f g h"], [["a b c d", "x"], ["e f g h"]])
    assert value == pytest.approx(100.0)
    assert "nrefs:var" in signature
