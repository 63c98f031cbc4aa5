from concurrent.futures import ThreadPoolExecutor

import pytest

from pipetrain.data.sentence_vocabulary import BEGINNING, END, MARKS, PADDING, UNKNOWN, vocabulary_of
from pipetrain.errors import ConfigError

TEXT = ["der Hund läuft im Park", "die Hunde laufen , im Park", "ein Hund"] * 3


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "pipetrain"


def files(cache):
    return sorted(cache.iterdir())


@pytest.mark.parametrize("line", ["der Hund läuft", "Größe: 漢字, nie gesehen", "a </s> <pad>", "x  y"])
def test_subwords_write_any_text_and_read_it_back(line):
    vocabulary = vocabulary_of(lambda: TEXT, "bpe", 300)
    (ids,) = vocabulary.encode([line])
    assert min(ids) >= len(MARKS)
    assert vocabulary.decode([BEGINNING, *ids, END, PADDING]) == line


def test_subwords_are_learned_from_the_text_up_to_the_size():
    vocabulary = vocabulary_of(lambda: TEXT, "bpe", 290)
    (frequent,), (unseen,) = vocabulary.encode(["Hund"]), vocabulary.encode(["dnuH"])
    assert vocabulary.size == 290
    assert len(frequent) < len(unseen)


def test_words_are_what_white_space_separates_and_the_rarest_are_unknown():
    vocabulary = vocabulary_of(lambda: TEXT, "words", len(MARKS) + 3)
    (ids,) = vocabulary.encode(["Hund im  Park läuft"])
    assert [i == UNKNOWN for i in ids] == [False, False, False, True]
    assert vocabulary.decode(ids) == "Hund im Park <unk>"
    assert vocabulary_of(lambda: TEXT, "words", None).size == len(MARKS) + 10


def test_vocabulary_is_trained_once_and_then_read_from_the_cache(cache, monkeypatch):
    trained = vocabulary_of(lambda: TEXT, "bpe", 290)
    monkeypatch.setattr("pipetrain.data.tokenizer.byte_pairs", None)
    read = vocabulary_of(lambda: TEXT, "bpe", 290)
    assert read.sha256 == trained.sha256
    assert list(read.encode(TEXT)) == list(trained.encode(TEXT))
    assert len(files(cache)) == 1


def test_other_text_and_other_settings_have_other_files(cache):
    hashes = {
        vocabulary_of(lambda text=text: text, *settings).sha256
        for text in (TEXT, TEXT[:2])
        for settings in (("bpe", 290), ("bpe", 280), ("words", None))
    }
    assert len(files(cache)) == len(hashes) == 6


def test_damaged_cache_is_replaced(cache):
    trained = vocabulary_of(lambda: TEXT, "words", None)
    (file,) = files(cache)
    file.write_text(file.read_text()[:50])
    assert vocabulary_of(lambda: TEXT, "words", None).sha256 == trained.sha256
    assert len(file.read_text()) > 50


def test_vocabulary_without_a_place_for_the_cache_is_trained_all_the_same(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    assert vocabulary_of(lambda: TEXT, "words", None).size == len(MARKS) + 10


def test_racing_trainings_leave_one_whole_file(cache):
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: vocabulary_of(lambda: TEXT, "bpe", 290).sha256, range(8)))
    assert len(set(found)) == len(files(cache)) == 1


@pytest.mark.parametrize(
    ("kind", "size", "named"),
    [
        ("syllables", 300, "dataset.tokens=syllables: one of bpe, words"),
        ("bpe", 100, "dataset.vocabulary_size=100: a whole number of at least 260"),
        ("bpe", None, "dataset.vocabulary_size=null: a whole number of at least 260"),
        ("words", 4, "dataset.vocabulary_size=4: a whole number of at least 5 is needed, or null for all words"),
    ],
)
def test_wrong_settings_are_refused_by_name(kind, size, named):
    with pytest.raises(ConfigError) as caught:
        vocabulary_of(lambda: TEXT, kind, size)
    assert named in str(caught.value)
