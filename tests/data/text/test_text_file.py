"""Text files and the bundled novels as data of a language model."""

import numpy as np
import pytest
from support.texts import prose

from pipetrain.data.text.text_file import austen, text_file
from pipetrain.errors import ConfigError


@pytest.fixture
def novel(tmp_path):
    path = tmp_path / "novel.txt"
    path.write_text(prose(), encoding="utf-8")
    return path


def text_of(data, samples):
    return data.vocabulary.decode([int(token) for inputs, _ in samples for token in inputs])


def all_of(split):
    return [split[i] for i in range(len(split))]


@pytest.mark.parametrize("tokens", ["characters", "bpe", "words"])
def test_text_is_learned_from_its_beginning_and_evaluated_on_its_end(novel, tokens):
    options = {"tokens": tokens, "vocabulary_size": 300, "positions": 8}
    data = text_file(str(novel), eval_share=0.2, **options)
    assert (data.vocabulary_size, data.max_length) == (data.vocabulary.size, 8)
    whole = prose().replace("\n\n", "\n") if tokens == "words" else prose()
    assert whole.startswith(text_of(data, all_of(data.train)))
    assert text_of(data, all_of(data.eval)) in whole[-len(whole) // 4 :]
    again = text_file(str(novel), eval_share=0.2, **options)
    assert np.array_equal(again.train.targets, data.train.targets)


def test_evaluation_may_have_a_text_of_its_own_with_other_characters(novel, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("Ω" * 50, encoding="utf-8")
    data = text_file(str(novel), str(other), tokens="characters", positions=8)
    assert set(text_of(data, all_of(data.eval))) == {"Ω"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokens": "bytes"}, r"dataset.tokens=bytes: one of characters, bpe, words"),
        ({"vocabulary_size": None}, r"dataset.vocabulary_size=null: a whole number of at least 256"),
        ({"vocabulary_size": 0}, r"dataset.vocabulary_size=0: a whole number"),
        ({"eval_share": 1.0}, r"dataset.eval_share=1.0: a number above 0 and below 1"),
        ({"tokens": "characters", "positions": 10_000}, r"the training part of .*novel.txt has \d+ tokens"),
        ({"eval_path": "none.txt"}, r"dataset.eval_path=none.txt: there is no file /.*/none.txt; name a text file"),
    ],
)
def test_text_that_cannot_be_used_is_refused_with_what_works(novel, options, message):
    with pytest.raises(ConfigError, match=message):
        text_file(str(novel), **options)


def test_bundled_novels_are_austens():
    data = austen(tokens="characters", positions=100)
    assert data.vocabulary_size == 81
    assert len(data.train) + len(data.eval) > 40_000
    assert "Emma Woodhouse, handsome" in text_of(data, [data.train[0], data.train[1]])
