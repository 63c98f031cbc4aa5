import gzip

import pytest

from pipetrain.data.parallel_files import Corpus
from pipetrain.errors import ConfigError


def write(folder, name, text):
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


def read(folder, names="train", origin=None):
    return list(Corpus(str(folder), ("de", "en"), origin).split("dataset.train", names))


def refused(folder, names="train", origin=None):
    with pytest.raises(ConfigError) as caught:
        read(folder, names, origin)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_lines_of_both_files_come_in_pairs_without_white_space_at_their_ends(tmp_path):
    write(tmp_path, "train.de", "ein Hund \r\n\nzwei\u2028Hunde\n")
    write(tmp_path, "train.en", "a dog\nnothing\ntwo dogs")
    assert read(tmp_path) == [("ein Hund", "a dog"), ("", "nothing"), ("zwei\u2028Hunde", "two dogs")]


def test_one_file_may_be_compressed_and_the_other_not(tmp_path):
    write(tmp_path, "train.de.gz", "eins\nzwei\n")
    write(tmp_path, "train.en", "one\ntwo\n")
    assert read(tmp_path) == [("eins", "one"), ("zwei", "two")]


def test_several_names_are_read_one_after_the_other_and_lang_stands_for_the_language(tmp_path):
    for language, word in (("de", "eins"), ("en", "one")):
        write(tmp_path, f"news.{language}", f"{word}\n")
        write(tmp_path, f"{language}/books.txt", f"{word} {word}\n")
    files = Corpus(str(tmp_path), ("de", "en")).split("dataset.train", ["news", "LANG/books.txt"])
    assert list(files) == list(files) == [("eins", "one"), ("eins eins", "one one")]


def test_missing_file_is_named_with_its_place_and_where_it_comes_from(tmp_path):
    write(tmp_path, "train.de", "eins\n")
    message = refused(tmp_path, origin="example.org/corpus")
    assert f"no file {tmp_path}/train.en (or train.en.gz); it comes from example.org/corpus" in message
    assert "put it there, or name others with dataset.train" in refused(tmp_path)


def test_files_of_different_numbers_of_lines_are_refused_with_the_shorter_ones(tmp_path):
    write(tmp_path, "train.de", "eins\nzwei\ndrei\n")
    short = write(tmp_path, "train.en", "one\ntwo\n")
    assert f"{short} has 2 lines and {tmp_path}/train.de more" in refused(tmp_path)


def test_damaged_archive_is_refused_with_the_line(tmp_path):
    write(tmp_path, "train.en", "one\n" * 5000)
    path = write(tmp_path, "train.de.gz", "".join(f"{i}\n" for i in range(5000)))
    path.write_bytes(path.read_bytes()[:-200])
    assert f"{path} cannot be read behind line" in refused(tmp_path)
    path.write_bytes(b"no archive")
    assert f"{path} cannot be read behind line 0" in refused(tmp_path)


def test_text_in_another_encoding_is_refused_with_the_line(tmp_path):
    write(tmp_path, "train.en", "one\ntwo\n")
    (tmp_path / "train.de").write_bytes(b"eins\nf\xfcnf\n")
    assert "line 2 of" in refused(tmp_path)
    assert "is not in UTF-8" in refused(tmp_path)


@pytest.mark.parametrize("names", [[], 3, [3], None])
def test_names_that_are_none_are_refused(tmp_path, names):
    assert f"dataset.train={names}: a name such as `train`" in refused(tmp_path, names)


def test_byte_order_mark_is_no_part_of_a_line(tmp_path):
    write(tmp_path, "train.de", "\ufeffeins\n")
    write(tmp_path, "train.en", "one\n")
    assert read(tmp_path) == [("eins", "one")]
