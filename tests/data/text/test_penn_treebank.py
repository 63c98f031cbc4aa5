"""The Penn Treebank in its files."""

import pytest

from pipetrain.data.text.penn_treebank import penn_treebank
from pipetrain.errors import ConfigError


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


def test_missing_treebank_says_where_it_was_looked_for_and_how_to_get_it(tmp_path):
    with pytest.raises(ConfigError, match=rf"dataset.root={tmp_path}: there is no file {tmp_path}/ptb.train.txt; put"):
        penn_treebank(str(tmp_path))
    write(tmp_path / "ptb")
    (tmp_path / "ptb" / "ptb.valid.txt").unlink()
    with pytest.raises(ConfigError, match=r"there is no file .*/ptb/ptb.valid.txt"):
        penn_treebank(str(tmp_path))
    with pytest.raises(ConfigError, match=r"dataset.eval_split=dev: there are valid and test"):
        penn_treebank(str(tmp_path), "dev")
