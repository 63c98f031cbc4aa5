import pytest

from pipetrain.data.sentences import Sentences, as_array, encoded
from pipetrain.data.vocabulary import SentenceVocabulary

IDS = [[7, 8, 9], [], [6], [5, 5]]
TEXT = ["ein Hund", "", "eine Katze"]


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "pipetrain"


@pytest.fixture
def vocabulary():
    return SentenceVocabulary.learned(lambda: TEXT, "words", None)


def listed(sentences):
    return [sentences[i] for i in range(len(sentences))]


def test_sentences_come_back_as_they_were_and_know_their_lengths():
    sentences = Sentences(as_array(iter(IDS)))
    assert listed(sentences) == IDS
    assert sentences.lengths == [3, 0, 1, 2]


def test_text_is_encoded_once_and_then_read_from_the_cache(cache, vocabulary, monkeypatch):
    first = listed(encoded(lambda: TEXT, vocabulary))
    assert first == list(vocabulary.encode_lines(TEXT))
    monkeypatch.setattr("pipetrain.data.sentences.as_array", None)
    assert listed(encoded(lambda: TEXT, vocabulary)) == first
    assert len(list(cache.glob("tokens-*"))) == 1


def test_other_text_or_vocabulary_is_encoded_anew(cache, vocabulary):
    other = SentenceVocabulary.learned(lambda: TEXT, "bpe", 270)
    found = [encoded(lambda text=text: text, each) for text in (TEXT, TEXT[1:]) for each in (vocabulary, other)]
    assert len(list(cache.glob("tokens-*"))) == len(found)


def test_damaged_cache_is_replaced(cache, vocabulary):
    first = listed(encoded(lambda: TEXT, vocabulary))
    (file,) = cache.glob("tokens-*")
    file.write_bytes(file.read_bytes()[:100])
    assert listed(encoded(lambda: TEXT, vocabulary)) == first
    assert len(file.read_bytes()) > 100
