import pytest

from pipetrain.data.translation.dataset import TokenSettings, TranslationDataset
from pipetrain.data.vocabulary import END, SPECIAL_TOKENS, UNKNOWN
from pipetrain.errors import ConfigError

TRAIN = [("ein Hund", "a dog"), ("", "nothing"), ("eine Katze und ein Hund", "a cat and a dog"), ("zwei", "two")]
EVAL = [("ein Hund", "a dog"), ("", "no thing"), ("zwei Katzen und noch viele Hunde mehr", "two cats")]


def built(train=TRAIN, evaluation=EVAL, **settings):
    return TranslationDataset(
        train, evaluation, TokenSettings(**{"tokens": "words", "vocabulary_size": None, **settings})
    )


def test_each_language_has_the_vocabulary_of_its_training_text():
    data = built()
    assert data.source_vocabulary_size == len(SPECIAL_TOKENS) + len({"ein", "Hund", "eine", "Katze", "und", "zwei"})
    assert data.target_vocabulary_size == len(SPECIAL_TOKENS) + len({"a", "dog", "nothing", "cat", "and", "two"})
    assert data.eval.source(2).tolist()[-2:] == [UNKNOWN, END]
    assert (data.padding, data.joint_vocabulary) == (0, False)


def test_joint_vocabulary_has_the_words_of_both_languages():
    data = built(joint=True)
    assert data.source_vocabulary_size == data.target_vocabulary_size == len(SPECIAL_TOKENS) + 12
    (source, prefix), _ = built([("a b", "a b")] * 2, joint=True).train[0]
    assert source.tolist()[:2] == prefix.tolist()[1:]


def test_training_skips_empty_and_long_sentences_with_notice():
    data = built(max_length=4)
    assert len(data.train) == 2
    told = "1 with an empty line and 1 with more than dataset.max_length=4 tokens in a line"
    assert data.notes == [f"training leaves out {told}, of 4 pairs"]
    assert (len(built(TRAIN[2:]).train), built(TRAIN[2:]).notes) == (2, [])


def test_evaluation_leaves_out_nothing():
    assert len(built(max_length=2).eval) == 3
    assert built().eval.source(1).tolist() == [END]


def test_training_text_without_a_usable_pair_is_refused():
    with pytest.raises(ConfigError, match="no pair of sentences to train on: of 1, 1 with an empty line are left out"):
        built([("", "x")])
    with pytest.raises(ConfigError, match="the files to train on have no lines"):
        built([])


def test_decoding_has_the_sources_and_the_plain_references():
    train = [("ein Hu@@ nd", "a do@@ g"), ("zw@@ ei", "t@@ wo")]
    decoding = built(train, train, bpe_mark="@@").decoding
    assert [list(reference) for reference in decoding.references] == [["a dog"], ["two"]]
    assert [source.tolist()[-1] for (source,) in decoding.sources] == [END, END]
    data = built(train, train, bpe_mark="@@")
    assert data.decoding.detokenize(data.eval[0][1].tolist()[:-1]) == "a dog"


def test_translations_may_exceed_training_length_by_half():
    assert built().decoding.longest == 7
    assert built(max_length=2).decoding.longest == 3


def test_subwords_read_back_as_plain_text():
    data = built(tokens="bpe", vocabulary_size=280)
    ids = data.eval[2][1].tolist()
    assert data.decoding.detokenize(ids[:-1]) == "two cats"


@pytest.mark.parametrize("name", ["max_length", "batch_tokens"])
def test_limits_below_one_are_refused(name):
    with pytest.raises(ConfigError, match=f"dataset.{name}=0: .* or null for any number"):
        TokenSettings(**{name: 0})
