"""Tables of texts and labels: columns, classes, and what is wrong with a line."""

import gzip
import re

import pytest
from support.refusals import assert_refused

from pipetrain.zoo.data.text.table import labelled_table


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def written(folder, name, *lines):
    text = "".join(f"{line}\n" for line in lines).encode()
    path = folder / name
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    return str(path)


def refused(message, **options):
    assert_refused(message, labelled_table, **options)


RATED = [f"{i}\t{rating}\ttext number {i}" for i, rating in enumerate([-2, -0.5, 0, 0.5, 3] * 4)]


def test_columns_are_found_by_name_and_labels_are_classes(tmp_path):
    file = written(tmp_path, "a.tsv", "text\tmood", *[f'a "good" text\t{mood}' for mood in ("sad", "glad")] * 5)
    data = labelled_table(file, label="mood", eval_share=0.3)
    assert list(data.classes) == ["glad", "sad"]
    assert (len(data.train), len(data.eval)) == (7, 3)


def test_columns_are_read_by_number_from_compressed_table(tmp_path):
    file = written(tmp_path, "a.tsv.gz", *RATED)
    data = labelled_table(file, text=2, label=1, thresholds=[0, 1], eval_file=file)
    assert list(data.classes) == ["below 0", "0 to 1", "from 1"]
    assert data.train.targets.tolist() == data.eval.targets.tolist() == [0, 0, 1, 1, 2] * 4
    assert len(data.train[0][0]) == 3


def test_csv_quotes_keep_commas_and_integer_labels_are_ordered(tmp_path):
    file = written(tmp_path, "a.csv", "label,text", *['10,"well, well"', "9,well"] * 3)
    data = labelled_table(file, eval_file=file)
    assert list(data.classes) == ["9", "10"]
    assert [len(ids) for ids in data.train.ids] == [3, 1] * 3


def test_labels_that_merely_look_like_numbers_are_classes(tmp_path):
    file = written(tmp_path, "a.csv", "label,text", "--1,bad", "1,good")
    assert list(labelled_table(file, eval_file=file).classes) == ["--1", "1"]


def test_label_that_no_text_to_train_on_has_is_named_by_its_line(tmp_path):
    file = written(tmp_path, "a.tsv", *["a\t1", "b\t2"] * 2)
    other = written(tmp_path, "b.tsv", "a\t1", "b\t7")
    refused("b.tsv, line 2: the label '7' is not one of the 2", file=file, eval_file=other, text=0, label=1)


def test_missing_or_damaged_file_is_named(tmp_path):
    refused(f"dataset.file=x.tsv: there is no file .*{re.escape('/x.tsv')}", file="x.tsv")
    whole = written(tmp_path, "a.tsv.gz", *RATED)
    cut = tmp_path / "cut.tsv.gz"
    cut.write_bytes((tmp_path / "a.tsv.gz").read_bytes()[:-20])
    refused("cut.tsv.gz is not a complete gzip", file=str(cut), text=2, label=1)
    (tmp_path / "plain.tsv.gz").write_bytes(b"no gzip")
    refused("plain.tsv.gz is not a complete gzip", file=str(tmp_path / "plain.tsv.gz"), text=2, label=1)
    (tmp_path / "bytes.tsv").write_bytes(b"\xff\xfe\t1\n")
    refused("bytes.tsv is not UTF-8", file=str(tmp_path / "bytes.tsv"), text=0, label=1)
    refused("empty.tsv holds no text", file=written(tmp_path, "empty.tsv"), text=0, label=1)
    refused("must end in .tsv, .csv", file=written(tmp_path, "a.txt", "a"), text=0, label=1)
    refused(r"dataset\.thresholds=\[1, ?0\]", file=whole, text=2, label=1, thresholds=[1, 0])


def test_byte_order_mark_of_a_spreadsheet_is_no_part_of_a_name(tmp_path):
    file = written(tmp_path, "a.csv", "\ufefftext,label", *["well,9", "bad,10"] * 3)
    assert list(labelled_table(file, eval_file=file).classes) == ["9", "10"]


BY_NUMBER = {"text": 0, "label": 1}
RATED_BY = {"text": 2, "label": 1, "thresholds": [0]}
FINE = [f"fine {i},1" for i in range(1, 41)]


@pytest.mark.parametrize(
    ("name", "lines", "options", "message"),
    [
        ("a.tsv", [*RATED, "20\t1"], RATED_BY, "a.tsv, line 21: 2 columns, and dataset.text=2"),
        ("a.tsv", [*RATED, "20\t1\t "], RATED_BY, "line 21: the text is empty"),
        ("a.tsv", [*RATED, "20\t \ttext"], RATED_BY, "line 21: the label is empty"),
        ("a.tsv", ["a\t1", "b\tgood"], {**BY_NUMBER, "thresholds": [0]}, "line 2: the label 'good' is not a number"),
        ("a.tsv", ["a\t1", "b\tnan"], {**BY_NUMBER, "thresholds": [0]}, "line 2: the label 'nan' is not a number"),
        ("a.tsv", ["a\t0.1", "b\t0.2"], BY_NUMBER, "line 1: the label '0.1' is a number, .*thresholds"),
        ("a.tsv", ["review\tlabel", "a\t1"], {}, r"dataset\.text=text: .* has the columns review, label"),
        ("a.tsv", ["a\t1", "b\t2"] * 2, {"text": 0, "label": -1}, "dataset.label=-1: must be a whole number"),
        ("a.csv", [*FINE[:8], '"open,1', *FINE[9:]], BY_NUMBER, "a.csv, line 9: 1 columns, .* over 32 lines, as a quo"),
        ("a.csv", ['"one', 'two",1', "fine,"], BY_NUMBER, "a.csv, line 3: the label is empty"),
        (
            "a.csv",
            ["fine,1", '"open,1', *["x" * 1000] * 200],
            BY_NUMBER,
            "a.csv, line 2: field larger than field limit",
        ),
    ],
)
def test_wrong_line_or_column_is_named(tmp_path, name, lines, options, message):
    refused(message, file=written(tmp_path, name, *lines), **options)
