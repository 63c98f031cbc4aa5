import pytest
import torch

from pipetrain.zoo.data.translation.dataset import (
    SentencePairs,
    Sentences,
    TranslationDataset,
    as_array,
    encode_sentences,
)
from pipetrain.zoo.data.vocabulary import BEGINNING, END, PADDING, SPECIAL_TOKENS, UNKNOWN, SentenceVocabulary

TRAIN = [("ein Hund", "a dog"), ("", "nothing"), ("eine Katze und ein Hund", "a cat and a dog"), ("zwei", "two")]
EVAL = [("ein Hund", "a dog"), ("", "no thing"), ("zwei Katzen und noch viele Hunde mehr", "two cats")]


def built(train=TRAIN, evaluation=EVAL, **settings):
    return TranslationDataset(train, evaluation, **{"tokens": "words", "vocabulary_size": None, **settings})


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


SOURCES, TARGETS = [[7, 8, 9], [], [6], [5, 5]], [[11], [12, 13], [14, 15, 16, 17], [18]]


def pairs(**options):
    return SentencePairs(Sentences(as_array(SOURCES)), Sentences(as_array(TARGETS)), **options)


def test_sample_ends_source_and_shifts_target():
    (source, prefix), target = pairs()[2]
    assert source.tolist() == [6, END]
    assert prefix.tolist() == [BEGINNING, 14, 15, 16, 17]
    assert target.tolist() == [14, 15, 16, 17, END]
    assert {source.dtype, prefix.dtype, target.dtype} == {torch.int64}


def test_split_has_the_pairs_that_are_kept_in_their_order():
    split = pairs(kept=[3, 0])
    assert len(split) == 2
    assert [split.source(i).tolist() for i in range(2)] == [[5, 5, END], [7, 8, 9, END]]
    assert split.batches(1, 2) == [[0], [1]]


def test_minibatch_is_padded_to_longest_sentence_per_side():
    split = pairs()
    (sources, prefixes), (targets,) = split.collate([split[0], split[2]])
    assert sources.tolist() == [[7, 8, 9, END], [6, END, PADDING, PADDING]]
    assert prefixes.tolist() == [[BEGINNING, 11, *[PADDING] * 3], [BEGINNING, 14, 15, 16, 17]]
    assert targets.tolist() == [[11, END, *[PADDING] * 3], [14, 15, 16, 17, END]]


def test_minibatches_count_the_marks_and_the_longer_side():
    assert pairs(batch_tokens=8).batches(64, 4) == [[1, 3], [0], [2]]
    assert pairs(batch_tokens=8).batches(64, 2) == [[1, 0]]


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
    first = listed(encode_sentences(lambda: TEXT, vocabulary))
    assert first == list(vocabulary.encode_lines(TEXT))
    monkeypatch.setattr("pipetrain.zoo.data.translation.dataset.as_array", None)
    assert listed(encode_sentences(lambda: TEXT, vocabulary)) == first
    assert len(list(cache.glob("tokens-*"))) == 1


def test_other_text_or_vocabulary_is_encoded_anew(cache, vocabulary):
    other = SentenceVocabulary.learned(lambda: TEXT, "bpe", 270)
    found = [
        encode_sentences(lambda text=text: text, each) for text in (TEXT, TEXT[1:]) for each in (vocabulary, other)
    ]
    assert len(list(cache.glob("tokens-*"))) == len(found)


def test_damaged_cache_is_replaced(cache, vocabulary):
    first = listed(encode_sentences(lambda: TEXT, vocabulary))
    (file,) = cache.glob("tokens-*")
    file.write_bytes(file.read_bytes()[:100])
    assert listed(encode_sentences(lambda: TEXT, vocabulary)) == first
    assert len(file.read_bytes()) > 100
