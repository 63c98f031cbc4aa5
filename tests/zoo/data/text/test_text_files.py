"""Text files and the bundled novels as data of a language model."""

import gzip
import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from support.refusals import assert_refused
from support.texts import prose

from pipetrain.zoo.data.text import text_files
from pipetrain.zoo.data.text.text_files import austen, penn_treebank, read_text, split_text, text_file


@pytest.fixture
def novel(tmp_path):
    path = tmp_path / "novel.txt"
    path.write_text(prose(), encoding="utf-8")
    return path


def text_of(data, samples):
    return data.vocabulary.decode([int(token) for inputs, _ in samples for token in inputs])


def all_of(split):
    return [split[i] for i in range(len(split))]


@pytest.mark.parametrize("tokens", ["characters", "bpe", "words"])
def test_text_trains_on_its_beginning_and_evaluates_on_its_end(novel, tokens):
    options = {"tokens": tokens, "vocabulary_size": 300, "positions": 8}
    data = text_file(str(novel), eval_share=0.2, **options)
    assert (data.vocabulary_size, data.max_length) == (data.vocabulary.size, 8)
    whole = prose().replace("\n\n", "\n") if tokens == "words" else prose()
    assert whole.startswith(text_of(data, all_of(data.train)))
    assert text_of(data, all_of(data.eval)) in whole[-len(whole) // 4 :]
    again = text_file(str(novel), eval_share=0.2, **options)
    assert np.array_equal(again.train.targets, data.train.targets)


def test_evaluation_text_may_have_other_characters(novel, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("Ω" * 50, encoding="utf-8")
    data = text_file(str(novel), str(other), tokens="characters", positions=8)
    assert set(text_of(data, all_of(data.eval))) == {"Ω"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokens": "bytes"}, "dataset.tokens=bytes: "),
        ({"vocabulary_size": None}, "dataset.vocabulary_size=null: .*at least 256"),
        ({"vocabulary_size": 0}, "dataset.vocabulary_size=0: "),
        ({"eval_share": 1.0}, "dataset.eval_share=1.0: "),
        ({"tokens": "characters", "vocabulary_size": 5}, r"dataset.vocabulary_size=5: .* characters; .*=null"),
        ({"tokens": "characters", "positions": 10_000}, r"novel.txt has \d+"),
        ({"eval_path": "none.txt"}, "dataset.eval_path=none.txt: .*/none.txt"),
        ({"path": "/proc/self/status"}, "/proc/self/status holds no text"),
    ],
)
def test_text_that_cannot_be_used_is_refused_with_what_works(novel, options, message):
    assert_refused(message, partial(text_file, **{"path": str(novel), **options}))


def test_bundled_novels_are_austens():
    data = austen(tokens="characters", positions=100)
    assert data.vocabulary_size == 81
    assert len(data.train) + len(data.eval) > 40_000
    assert "Emma Woodhouse, handsome" in text_of(data, [data.train[0], data.train[1]])


def write(folder):
    folder.mkdir(parents=True, exist_ok=True)
    for split, lines in (("train", 9), ("valid", 3), ("test", 2)):
        (folder / f"ptb.{split}.txt").write_text(" the <unk> sold N shares \n" * lines, encoding="utf-8")


@pytest.mark.parametrize("below", [".", "simple-examples/data"])
def test_lines_of_the_treebank_are_words_and_an_end(tmp_path, below):
    write(tmp_path / below)
    data = penn_treebank(str(tmp_path), positions=6)
    assert data.vocabulary_size == 6
    assert data.vocabulary.decode(data.train[1][0].tolist()) == "the <unk> sold N shares\n"
    assert (len(data.train), len(data.eval)) == (8, 2)
    assert len(penn_treebank(str(tmp_path), "test", positions=6).eval) == 1


def test_missing_treebank_is_named_with_place_and_source(tmp_path):
    assert_refused(f"dataset.root={tmp_path}: .*{tmp_path}/ptb.train.txt", partial(penn_treebank, str(tmp_path)))
    write(tmp_path / "ptb")
    (tmp_path / "ptb" / "ptb.valid.txt").unlink()
    assert_refused("no file .*/ptb/ptb.valid.txt", partial(penn_treebank, str(tmp_path)))
    assert_refused("dataset.eval_split=dev: must be valid or test", partial(penn_treebank, str(tmp_path), "dev"))


def read(path):
    return read_text(path, f"dataset.path={path.name}", "name a text file")


def test_text_is_read_plain_and_packed_with_one_kind_of_line_end(tmp_path):
    plain, packed = tmp_path / "a.txt", tmp_path / "a.txt.gz"
    content = "\ufeffeins\r\nzwei £\rdrei\n".encode()
    plain.write_bytes(content)
    packed.write_bytes(gzip.compress(content))
    assert read(plain) == read(packed) == "eins\nzwei £\ndrei\n"


@pytest.mark.parametrize(
    ("name", "make", "message"),
    [
        ("a.txt", lambda _path: None, "dataset.path=a.txt: .*/a.txt; name a text file"),
        ("a.txt", lambda path: path.write_bytes(b" \n\n"), "a.txt holds no text"),
        ("a.txt", lambda path: path.write_bytes(b"caf\xe9"), "a.txt is not UTF-8: byte 3 is 0xe9"),
        ("a.txt.gz", lambda path: path.write_bytes(b"text"), "not a complete gzip archive"),
        ("a.txt.gz", lambda path: path.write_bytes(gzip.compress(b"text" * 99)[:-9]), "not a complete gzip archive"),
        ("a.txt", Path.mkdir, "cannot be read: Is a directory"),
        ("a.txt", os.mkfifo, "a.txt cannot be read: it is not a regular"),
        ("a.txt.gz", os.mkfifo, "a.txt.gz cannot be read: it is not a regular"),
    ],
)
def test_file_that_is_no_text_is_refused_by_name(tmp_path, name, make, message):
    make(tmp_path / name)
    assert_refused(message, partial(read, tmp_path / name))


def test_text_is_split_at_the_end_of_a_line():
    text = "one\ntwo\nthree\nfour\n"
    assert split_text(text, 0.5) == ("one\ntwo\nthree\n", "four\n")


@pytest.mark.parametrize("end", ["", "\n"])
def test_text_of_one_line_is_split_within_it(end):
    assert split_text(f"a book of one line{end}", 0.5) == ("a book of", f" one line{end}")
    assert split_text(f"A title\nand a text{end}", 0.5) == ("A title\na", f"nd a text{end}")


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_oversized_text_is_refused_before_it_fills_memory(tmp_path, monkeypatch, name):
    monkeypatch.setattr(text_files, "MOST_BYTES", 4_000_000)
    text = b"word " * 800_000
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    assert len(read_text(tmp_path / name, "dataset.path", "name another")) == 4_000_000
    (tmp_path / name).write_bytes(gzip.compress(text + b"x") if name.endswith(".gz") else text + b"x")
    assert_refused("more than 4 MB", partial(read_text, tmp_path / name, "dataset.path", "name another"))
