"""Words of captions as ids."""

from pipetrain.data.word_list import UNKNOWN, WordList


def test_frequent_words_come_first_and_text_is_given_back_in_lower_case():
    words = WordList(["A cat, a dog.", "a dog's dog"])
    assert words.ids("a dog cat dog's") == [4, 5, 6, 7]
    assert words.text([1, 4, 5, 2, 0, 0]) == "a dog"
    assert len(words) == 8


def test_rare_and_unseen_words_are_unknown():
    words = WordList(["a cat", "a dog"], least=2)
    assert words.ids("a cat") == [4, UNKNOWN]
    assert words.text([4, UNKNOWN]) == "a <unk>"
