"""Texts with classes: tokens, padding, minibatches of like lengths."""

import pytest
import torch
from support.refusals import assert_refused

from pipetrain.zoo.data.text.classification import Examples, TextClasses, austen_novels, imdb, sentences

TEXTS = ["A b c.", "a b", "b c d e, f", "c"] * 5


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def classes(train, evaluation, tokens="words", size=100, max_length=10):
    return TextClasses(train, evaluation, ["x", "y"], tokens=tokens, vocabulary_size=size, max_length=max_length)


def dataset(max_length=10):
    train = Examples(TEXTS, [0, 1, 0, 1] * 5)
    return classes(train, Examples(["a new b"], [1]), max_length=max_length)


def test_words_are_in_lower_case_and_punctuation_stands_apart():
    train = dataset().train
    first, second = train[0][0].tolist(), train[1][0].tolist()
    assert len(first) == 4
    assert first[:2] == second


def test_evaluation_texts_use_training_vocabulary():
    data = dataset()
    a, unknown, b = data.eval[0][0].tolist()
    assert [a, b] == data.train[1][0].tolist()
    assert unknown not in (a, b)
    assert max(ids.max() for ids in data.train.ids) < data.vocabulary_size


def test_long_text_is_cut_off():
    assert max(len(ids) for ids in dataset(max_length=2).train.ids) == 2


def test_minibatches_hold_every_text_once_by_similar_length():
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
    train, held_out = examples.split(0.2)
    assert (len(train.texts), len(held_out.texts)) == (80, 20)
    assert {*train.texts, *held_out.texts} == set(examples.texts)
    assert set(held_out.labels) == set(train.labels[:20]) == {0, 1}
    assert examples.split(0.2) == (train, held_out)


def test_subwords_can_write_any_text_and_leave_the_padding_free():
    train = Examples(["aa ab aa"] * 3, [0, 1, 0])
    data = classes(train, Examples(["ü 本"], [0]), "bpe", 300, 20)
    assert data.vocabulary.decode(data.eval[0][0].tolist()) == "ü 本"
    assert min(ids.min() for ids in (*data.train.ids, *data.eval.ids)) > data.padding


def test_vocabularies_of_one_size_are_told_apart():
    one, other, again = (
        classes(Examples([text], [0]), Examples(["c"], [0]), size=None).vocabulary_sha256
        for text in ("a b", "a c", "b a")
    )
    assert one == again != other


@pytest.fixture
def root(tmp_path):
    for split in ("train", "test"):
        for name, word in (("neg", "bad"), ("pos", "good")):
            folder = tmp_path / "data" / "aclImdb" / split / name
            folder.mkdir(parents=True)
            for i in range(5):
                (folder / f"{i}_{i}.txt").write_text(f"A {word} film.<br /><br />Really.", encoding="utf-8")
    return tmp_path / "data"


def test_reviews_are_read_with_the_class_of_their_folder(root):
    data = imdb(str(root))
    assert list(data.classes) == ["neg", "pos"]
    assert (len(data.train), len(data.eval)) == (10, 10)
    by_label = {label: {tuple(ids.tolist()) for ids, each in data.train if each == label} for label in (0, 1)}
    assert [len(texts) for texts in by_label.values()] == [1, 1]
    assert by_label[0] != by_label[1]
    assert all(len(ids) == 6 for ids in data.train.ids)
    assert len(set(data.train.targets[:5].tolist())) == 2


def test_root_may_be_the_folder_itself(root):
    assert len(imdb(str(root / "aclImdb")).train) == 10


def test_missing_or_empty_review_is_named(root):
    assert_refused("no reviews in /nowhere/aclImdb/train/neg", imdb, "/nowhere")
    review = root / "aclImdb/train/pos/3_3.txt"
    text = review.read_text()
    review.write_text(" \n")
    assert_refused("train/pos/3_3.txt holds no text", imdb, str(root))
    review.write_text(text)
    for path in (root / "aclImdb/test/pos").iterdir():
        path.unlink()
    assert_refused("no reviews in .*/aclImdb/test/pos; .*aclImdb_v1.tar.gz", imdb, str(root))


def test_sentences_end_at_full_stops_and_not_behind_a_title():
    text = 'CHAPTER I\n\nMr. Knightley walked to\nHartfield all the same. "You are right!" said Mrs. Weston to him.'
    found = list(sentences(text))
    assert found[0] == "Mr Knightley walked to Hartfield all the same."
    assert found[1].startswith('"You are right!"')


@pytest.mark.slow
def test_bundled_novels_give_sentences_of_six_classes():
    data = austen_novels()
    assert data.classes[0] == "Emma"
    assert len(data.classes) == 6
    counts = data.eval.targets.bincount().tolist()
    assert len(counts) == 6
    assert min(counts) > 250
    assert 25_000 < len(data.train) + len(data.eval) < 30_000
    assert data.vocabulary_size == 8000
