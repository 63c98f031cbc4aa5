"""Characters, words and byte pairs as tokens of running text and of sentences."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support.texts import prose
from tokenizers import Tokenizer

from pipetrain.engine.errors import ConfigError
from pipetrain.zoo.data.vocabulary import (
    BEGINNING,
    END,
    PADDING,
    SPECIAL_TOKENS,
    UNKNOWN,
    CharacterVocabulary,
    SentenceVocabulary,
    TokenizerVocabulary,
    WordVocabulary,
)

PROSE = prose()
SENTENCES = ["der Hund läuft im Park", "die Hunde laufen , im Park", "ein Hund"] * 3
byte_pairs = TokenizerVocabulary.byte_pairs
learned = SentenceVocabulary.learned


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "pipetrain"


def test_characters_come_back_as_they_were():
    text = prose() + "£ 𝄞"
    vocabulary = CharacterVocabulary.of(text)
    ids = vocabulary.encode(text)
    assert vocabulary.decode(ids.tolist()) == text
    assert (vocabulary.size, len(ids)) == (len(set(text)), len(text))
    assert ids.max() == vocabulary.size - 1


def test_characters_keep_a_given_order():
    assert CharacterVocabulary("zay").encode("yaz").tolist() == [2, 1, 0]


def test_words_are_ranked_by_frequency_and_the_rest_is_unknown():
    vocabulary = WordVocabulary.of("b a b\nc c b", size=4)
    assert vocabulary.decode(vocabulary.encode("c b a").tolist()) == "c b <unk>"
    assert vocabulary.size == 4
    assert WordVocabulary.of("b a b\nc c b").size == 5


def test_word_lines_end_in_token_and_empty_ones_are_dropped():
    vocabulary = WordVocabulary.of("a b\n")
    end = vocabulary.encode("a\n").tolist()[1]
    assert vocabulary.encode(" a b \n\n \nb").tolist().count(end) == 1
    assert vocabulary.decode(vocabulary.encode("a b\nb a\nb").tolist()) == "a b\nb a\nb"


def test_text_without_prompt_begins_with_a_new_line_where_there_is_one():
    every = [WordVocabulary.of("a b\nb\n"), CharacterVocabulary.of("ab\n"), CharacterVocabulary.of("ba")]
    assert [each.decode(each.start) for each in every] == ["\n", "\n", "a"]


def test_unknown_words_that_a_text_has_itself_are_one_token():
    assert WordVocabulary.of("<unk> a <unk>\n").size == 3


def test_hash_tells_vocabularies_apart():
    of = CharacterVocabulary.of
    assert of("abc").sha256 == of("cab").sha256 != of("abd").sha256
    assert WordVocabulary(["ab", "c"]).sha256 != WordVocabulary(["a", "bc"]).sha256


def test_any_text_comes_back_from_byte_pairs_as_it_was():
    vocabulary = byte_pairs(PROSE, 290)
    for text in (PROSE, "never seen: Ω, 𝄞\n\n  and\ttabs", ""):
        assert vocabulary.decode(vocabulary.encode(text).tolist()) == text
    assert vocabulary.size == 290
    assert len(vocabulary.encode(PROSE)) < len(PROSE) / 2
    assert byte_pairs(PROSE, 290).sha256 == vocabulary.sha256


def test_text_with_few_pairs_has_fewer_tokens_than_asked_for():
    assert byte_pairs("ab ab", 1000).size < 300


def test_vocabulary_is_built_once_per_text_and_size(cache, monkeypatch):
    asked = [(PROSE, 290), (PROSE, 280), (PROSE + "more", 290)]
    made = [byte_pairs(text, size).sha256 for text, size in asked]
    ids = byte_pairs(PROSE, 290).encode_once(PROSE)
    assert len(list(cache.iterdir())) == 4
    monkeypatch.setattr("pipetrain.zoo.data.vocabulary._byte_pairs", None)
    monkeypatch.setattr(TokenizerVocabulary, "encode", None)
    assert [byte_pairs(text, size).sha256 for text, size in asked] == made
    assert np.array_equal(byte_pairs(PROSE, 290).encode_once(PROSE), ids)


def test_damaged_files_of_the_cache_are_made_anew(cache):
    before = byte_pairs(PROSE, 290).encode_once(PROSE)
    for path in cache.iterdir():
        path.write_bytes(path.read_bytes()[:100])
    assert np.array_equal(byte_pairs(PROSE, 290).encode_once(PROSE), before)


def test_tokenizer_of_a_file_is_read_and_another_file_refused(tmp_path):
    vocabulary = byte_pairs(PROSE, 290)
    vocabulary.tokenizer.save(str(tmp_path / "tokenizer.json"))
    read = TokenizerVocabulary.read(tmp_path / "tokenizer.json", "dataset.tokenizer=t")
    assert (read.size, read.sha256) == (290, vocabulary.sha256)
    plain = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert plain.encode(PROSE[:50]).ids == read.encode(PROSE[:50]).tolist()
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"dataset.tokenizer=t: .*other.json"):
        TokenizerVocabulary.read(tmp_path / "other.json", "dataset.tokenizer=t")
    with pytest.raises(ConfigError, match=r"dataset.tokenizer=t: .*none.json"):
        TokenizerVocabulary.read(tmp_path / "none.json", "dataset.tokenizer=t")


def files(cache):
    return sorted(cache.iterdir())


@pytest.mark.parametrize("line", ["der Hund läuft", "Größe: 漢字, nie gesehen", "a </s> <pad>", "x  y"])
def test_subwords_write_any_text_and_read_it_back(line):
    vocabulary = learned(lambda: SENTENCES, "bpe", 300)
    (ids,) = vocabulary.encode_lines([line])
    assert min(ids) >= len(SPECIAL_TOKENS)
    assert vocabulary.decode([BEGINNING, *ids, END, PADDING]) == line


def test_subwords_are_learned_from_the_text_up_to_the_size():
    vocabulary = learned(lambda: SENTENCES, "bpe", 290)
    (frequent,), (unseen,) = vocabulary.encode_lines(["Hund"]), vocabulary.encode_lines(["dnuH"])
    assert vocabulary.size == 290
    assert len(frequent) < len(unseen)


def test_words_split_at_white_space_and_rarest_are_unknown():
    vocabulary = learned(lambda: SENTENCES, "words", len(SPECIAL_TOKENS) + 3)
    (ids,) = vocabulary.encode_lines(["Hund im  Park läuft"])
    assert [i == UNKNOWN for i in ids] == [False, False, False, True]
    assert vocabulary.decode(ids) == "Hund im Park <unk>"
    assert learned(lambda: SENTENCES, "words", None).size == len(SPECIAL_TOKENS) + 10


def test_special_tokens_in_the_text_are_unknown_words():
    lines = ["a <unk> b </s> c", "a b <unk>", "a x"]
    vocabulary = learned(lambda: lines, "words", None)
    assert vocabulary.size == len(SPECIAL_TOKENS) + 4
    marked, _, plain = vocabulary.encode_lines(lines)
    assert [i == UNKNOWN for i in marked] == [False, True, False, True, False]
    assert max(*marked, *plain) == vocabulary.size - 1
    assert learned(lambda: ["a b c", "a b", "a x"], "words", None).sha256 == vocabulary.sha256


def test_other_sentences_and_other_settings_have_other_files(cache):
    hashes = {
        learned(lambda text=text: text, *settings).sha256
        for text in (SENTENCES, SENTENCES[:2])
        for settings in (("bpe", 290), ("bpe", 280), ("words", None))
    }
    assert len(files(cache)) == len(hashes) == 6


def test_vocabulary_is_trained_without_a_cache(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    assert learned(lambda: SENTENCES, "words", None).size == len(SPECIAL_TOKENS) + 10


def test_racing_trainings_leave_one_whole_file(cache):
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: learned(lambda: SENTENCES, "bpe", 290).sha256, range(8)))
    assert len(set(found)) == len(files(cache)) == 1
