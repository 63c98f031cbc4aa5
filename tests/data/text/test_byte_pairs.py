"""Byte pairs, learned once."""

import numpy as np
import pytest
from support.texts import prose
from tokenizers import Tokenizer

from pipetrain.data.text.byte_pairs import BytePairVocabulary
from pipetrain.errors import ConfigError

TEXT = prose()
learned = BytePairVocabulary.learned


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "pipetrain"


def test_any_text_comes_back_from_byte_pairs_as_it_was():
    vocabulary = learned(TEXT, 290)
    for text in (TEXT, "never seen: Ω, 𝄞\n\n  and\ttabs", ""):
        assert vocabulary.decode(vocabulary.encode(text).tolist()) == text
    assert vocabulary.size == 290
    assert len(vocabulary.encode(TEXT)) < len(TEXT) / 2
    assert learned(TEXT, 290).sha256 == vocabulary.sha256


def test_text_with_few_pairs_has_fewer_tokens_than_asked_for():
    assert learned("ab ab", 1000).size < 300


@pytest.mark.parametrize(("size", "given"), [(200, "200"), (None, "null")])
def test_vocabulary_too_small_for_all_bytes_is_refused(size, given):
    with pytest.raises(ConfigError, match=f"dataset.vocabulary_size={given}: a whole number of at least 256"):
        learned(TEXT, size)


def test_vocabulary_and_tokens_are_made_once_for_each_text_and_size(cache, monkeypatch):
    asked = [(TEXT, 290), (TEXT, 280), (TEXT + "more", 290)]
    made = [learned(text, size).sha256 for text, size in asked]
    ids = learned(TEXT, 290).encode_once(TEXT)
    assert len(list(cache.iterdir())) == 4
    monkeypatch.setattr("pipetrain.data.tokenizer.byte_pairs", None)
    monkeypatch.setattr(BytePairVocabulary, "encode", None)
    assert [learned(text, size).sha256 for text, size in asked] == made
    assert np.array_equal(learned(TEXT, 290).encode_once(TEXT), ids)


def test_damaged_files_of_the_cache_are_made_anew(cache):
    before = learned(TEXT, 290).encode_once(TEXT)
    for path in cache.iterdir():
        path.write_bytes(path.read_bytes()[:100])
    assert np.array_equal(learned(TEXT, 290).encode_once(TEXT), before)


def test_tokenizer_of_a_file_is_read_and_another_file_refused(tmp_path):
    vocabulary = learned(TEXT, 290)
    vocabulary.tokenizer.save(str(tmp_path / "tokenizer.json"))
    read = BytePairVocabulary.read(tmp_path / "tokenizer.json", "dataset.tokenizer=t")
    assert (read.size, read.sha256) == (290, vocabulary.sha256)
    plain = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert plain.encode(TEXT[:50]).ids == read.encode(TEXT[:50]).tolist()
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"dataset.tokenizer=t: .*other.json is no tokenizer.json"):
        BytePairVocabulary.read(tmp_path / "other.json", "dataset.tokenizer=t")
    with pytest.raises(ConfigError, match=r"dataset.tokenizer=t: there is no file /.*none.json"):
        BytePairVocabulary.read(tmp_path / "none.json", "dataset.tokenizer=t")
