"""The folder aclImdb, as it is published."""

import re

import pytest

from pipetrain.data.text.imdb import imdb
from pipetrain.errors import ConfigError


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


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


def test_missing_split_says_where_it_was_looked_for_and_how_to_get_it(root):
    for path in (root / "aclImdb/test/pos").iterdir():
        path.unlink()
    with pytest.raises(
        ConfigError, match=f"no reviews in {re.escape(str(root))}/aclImdb/test/pos; .*aclImdb_v1.tar.gz"
    ):
        imdb(str(root))
    with pytest.raises(ConfigError, match="no reviews in /nowhere/aclImdb/train/neg"):
        imdb("/nowhere")


def test_review_without_text_is_named(root):
    (root / "aclImdb/train/pos/3_3.txt").write_text(" \n")
    with pytest.raises(ConfigError, match=re.escape("train/pos/3_3.txt holds no text")):
        imdb(str(root))
