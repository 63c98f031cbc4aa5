"""Characters and words as tokens."""

import pytest
from support.texts import prose

from pipetrain.data.text.vocabulary import CharacterVocabulary, WordVocabulary
from pipetrain.errors import ConfigError


def test_characters_come_back_as_they_were():
    text = prose() + "£ 𝄞"
    vocabulary = CharacterVocabulary.of(text)
    ids = vocabulary.encode(text)
    assert vocabulary.decode(ids.tolist()) == text
    assert (vocabulary.size, len(ids)) == (len(set(text)), len(text))
    assert ids.max() == vocabulary.size - 1


def test_characters_keep_a_given_order():
    assert CharacterVocabulary("zay").encode("yaz").tolist() == [2, 1, 0]


def test_characters_that_no_token_stands_for_are_named():
    with pytest.raises(ConfigError, match=r"its vocabulary of 2 does not have: '!', 'c'"):
        CharacterVocabulary("ab").encode("ac!")


def test_words_are_ranked_by_frequency_and_the_rest_is_unknown():
    vocabulary = WordVocabulary.of("b a b\nc c b", size=4)
    assert vocabulary.decode(vocabulary.encode("c b a").tolist()) == "c b <unk>"
    assert vocabulary.size == 4
    assert WordVocabulary.of("b a b\nc c b").size == 5


def test_lines_of_words_end_in_a_token_and_empty_ones_are_left_out():
    vocabulary = WordVocabulary.of("a b\n")
    end = vocabulary.encode("a\n").tolist()[1]
    assert vocabulary.encode(" a b \n\n \nb").tolist().count(end) == 1
    assert vocabulary.decode(vocabulary.encode("a b\nb a\nb").tolist()) == "a b\nb a\nb"


def test_unknown_words_that_a_text_has_itself_are_one_token():
    assert WordVocabulary.of("<unk> a <unk>\n").size == 3


def test_hash_tells_vocabularies_apart():
    of = CharacterVocabulary.of
    assert of("abc").sha256 == of("cab").sha256 != of("abd").sha256
    assert WordVocabulary(["ab", "c"]).sha256 != WordVocabulary(["a", "bc"]).sha256
