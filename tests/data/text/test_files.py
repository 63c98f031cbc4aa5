"""Reading files of text."""

import gzip

import pytest

from pipetrain.data.text import files
from pipetrain.data.text.files import read_text, split_text
from pipetrain.errors import ConfigError


def read(path):
    return read_text(path, f"dataset.path={path.name}", "name a text file")


def test_text_is_read_plain_and_packed_with_one_kind_of_line_end(tmp_path):
    plain, packed = tmp_path / "a.txt", tmp_path / "a.txt.gz"
    content = "\ufeffeins\r\nzwei £\rdrei\n".encode()
    plain.write_bytes(content)
    packed.write_bytes(gzip.compress(content))
    assert read(plain) == read(packed) == "eins\nzwei £\ndrei\n"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", None, r"dataset.path=a.txt: there is no file /.*/a.txt; name a text file"),
        ("a.txt", b" \n\n", r"dataset.path=a.txt: .*a.txt holds no text"),
        ("a.txt", b"caf\xe9", r"a.txt is not UTF-8: byte 3 is 0xe9; convert it, for instance with iconv"),
        ("a.txt.gz", b"text", r"a.txt.gz is no whole gzip archive"),
        ("a.txt.gz", gzip.compress(b"text" * 99, mtime=0)[:-9], r"a.txt.gz is no whole gzip archive"),
    ],
)
def test_file_that_is_no_text_is_refused_by_name(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        read(tmp_path / name)


def test_folder_in_place_of_a_text_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot be read: Is a directory"):
        read(tmp_path)


def test_text_is_split_at_the_end_of_a_line():
    text = "one\ntwo\nthree\nfour\n"
    assert split_text(text, 0.5) == ("one\ntwo\nthree\n", "four\n")


@pytest.mark.parametrize("end", ["", "\n"])
def test_text_without_a_further_line_is_split_within_its_last_one(end):
    assert split_text(f"a book of one line{end}", 0.5) == ("a book of", f" one line{end}")
    assert split_text(f"A title\nand a text{end}", 0.5) == ("A title\na", f"nd a text{end}")


@pytest.mark.parametrize(("name", "words"), [("a.txt", "has"), ("a.txt.gz", "unpacks to")])
def test_text_that_is_too_large_is_refused_before_it_fills_the_memory(tmp_path, monkeypatch, name, words):
    monkeypatch.setattr(files, "MOST_BYTES", 4_000_000)
    text = b"word " * 800_000
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    assert len(read_text(tmp_path / name, "dataset.path", "name another")) == 4_000_000
    (tmp_path / name).write_bytes(gzip.compress(text + b"x") if name.endswith(".gz") else text + b"x")
    with pytest.raises(ConfigError, match=rf"^dataset.path: .*{name} {words} more than 4 MB, too much for a text"):
        read_text(tmp_path / name, "dataset.path", "name another")
