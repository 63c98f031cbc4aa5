"""Texts with classes: tokens, padding, minibatches of like lengths."""

import pytest
import torch

from pipetrain.data.text.labelled_texts import Examples, Pieces, text_classes
from pipetrain.errors import ConfigError

TEXTS = ["A b c.", "a b", "b c d e, f", "c"] * 5


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def dataset(max_length=10):
    train = Examples(TEXTS, [0, 1, 0, 1] * 5)
    return text_classes(train, Examples(["a new b"], [1]), ["x", "y"], Pieces("words", 100, max_length))


def test_words_are_in_lower_case_and_punctuation_stands_apart():
    train = dataset().train
    first, second = train[0][0].tolist(), train[1][0].tolist()
    assert len(first) == 4
    assert first[:2] == second


def test_texts_of_the_evaluation_have_the_vocabulary_of_the_training():
    data = dataset()
    a, unknown, b = data.eval[0][0].tolist()
    assert [a, b] == data.train[1][0].tolist()
    assert unknown not in (a, b)
    assert max(ids.max() for ids in data.train.ids) < data.vocabulary_size


def test_long_text_is_cut_off():
    assert max(len(ids) for ids in dataset(max_length=2).train.ids) == 2


def test_minibatches_hold_every_text_once_with_those_of_like_lengths_together():
    train = dataset().train
    batches = train.batches(4, len(train))
    assert sorted(index for batch in batches for index in batch) == list(range(20))
    assert [len(train.ids[index]) for batch in batches for index in batch] == sorted(map(len, train.ids))
    assert batches == train.batches(4, len(train))
    assert sorted(index for batch in train.batches(4, 6) for index in batch) == list(range(6))


def test_collated_texts_are_padded_to_the_longest():
    train = dataset().train
    ids, labels = train.collate([train[3], train[2]])
    assert ids.shape == (2, 6)
    assert ids.dtype == labels.dtype == torch.int64
    assert ids[0, 1:].tolist() == [0] * 5
    assert labels.tolist() == [1, 0]


def test_held_out_share_is_mixed_and_always_the_same():
    examples = Examples(list(map(str, range(100))), [0] * 50 + [1] * 50)
    train, held_out = examples.divided(0.2)
    assert (len(train.texts), len(held_out.texts)) == (80, 20)
    assert {*train.texts, *held_out.texts} == set(examples.texts)
    assert set(held_out.labels) == set(train.labels[:20]) == {0, 1}
    assert examples.divided(0.2) == (train, held_out)


@pytest.mark.parametrize("share", [0, 1, "half"])
def test_share_out_of_its_range_is_refused(share):
    with pytest.raises(ConfigError, match=r"dataset\.eval_share="):
        Examples(["a", "b"], [0, 1]).divided(share)


def test_length_below_one_is_refused():
    with pytest.raises(ConfigError, match=r"dataset\.max_length=0"):
        Pieces("words", 100, 0)


def test_subwords_can_write_any_text_and_leave_the_padding_free():
    train = Examples(["aa ab aa"] * 3, [0, 1, 0])
    data = text_classes(train, Examples(["ü 本"], [0]), ["x", "y"], Pieces("bpe", 300, 20))
    assert data.vocabulary.decode(data.eval[0][0].tolist()) == "ü 本"
    assert min(ids.min() for ids in (*data.train.ids, *data.eval.ids)) > data.padding


def test_vocabularies_of_one_size_are_told_apart():
    one, other, again = (
        text_classes(Examples([text], [0]), Examples(["c"], [0]), ["x"], Pieces("words", None, 9)).vocabulary_sha256
        for text in ("a b", "a c", "b a")
    )
    assert one == again != other
