import gzip
import re
from functools import partial

import pytest
from support.cli import pipetrain_here, run_here, summary
from support.refusals import assert_refused

from pipetrain.zoo.data.translation.parallel_text import parallel_files, parallel_text

NUMBERS = {"eins": "one", "zwei": "two", "drei": "three", "vier": "four", "fünf": "five", "sechs": "six"}
SENTENCES = [f"{a} und {b} und {c}" for a in NUMBERS for b in NUMBERS for c in NUMBERS]
TINY = (
    "model=transformer", "model.layers=1", "model.width=32", "model.feedforward=32", "model.heads=2",
    "optimizer.lr=0.01", "lr_schedule.warmup=20", "train.batch_size=64", "train.epochs=4",
    "threads=1", "executor=simulated",
)  # fmt: skip


def english(sentence):
    return " ".join({**NUMBERS, "und": "and"}[word] for word in sentence.split())


def written(folder, **splits):
    """German and English files of these sentences."""
    folder.mkdir()
    for name, sentences in splits.items():
        (folder / f"{name}.de").write_text("".join(f"{sentence}\n" for sentence in sentences))
        (folder / f"{name}.en").write_text("".join(f"{english(sentence)}\n" for sentence in sentences))
    return folder


def test_files_of_two_languages_become_a_data_set(tmp_path):
    folder = written(tmp_path / "data", train=SENTENCES, dev=SENTENCES[:5])
    data = parallel_text(str(folder), eval="dev", tokens="words", vocabulary_size=None, batch_tokens=70)
    assert (len(data.train), len(data.eval)) == (216, 5)
    assert (data.source_vocabulary_size, data.target_vocabulary_size) == (11, 11)
    assert {len(batch) for batch in data.train.batches(64, 216)} == {11, 7}
    assert data.decoding.references[0] == ["one and one and one"]


@pytest.mark.slow
def test_training_on_files_reports_bleu_and_evaluates_a_split(tmp_path):
    folder = written(tmp_path / "data", train=[*SENTENCES[:200], ""], val=SENTENCES[200:], test=SENTENCES[::40])
    settings = (*TINY, "dataset=parallel_text", "dataset.tokens=words", "dataset.vocabulary_size=null")
    done = run_here(tmp_path / "run", f"dataset.root={folder}", *settings)
    assert "training leaves out 1 with an empty line, of 201 pairs" in done.stdout + done.stderr
    final = summary(tmp_path / "run")["final"]
    assert final["bleu"] > 20
    assert final["perplexity"] < 6
    evaluated = pipetrain_here("eval", str(tmp_path / "run"), "dataset.eval=test", "--json", cwd=tmp_path)
    assert evaluated.returncode == 0, evaluated.stderr
    assert '"bleu"' in evaluated.stdout
    (folder / "val.en").write_text("one\n")
    refused = run_here(tmp_path / "other", f"dataset.root={folder}", *settings, code=2)
    assert re.search(r"val.en has 1 lines and .*val.de more", refused.stderr)


def write(folder, name, text):
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


def read(folder, names="train", origin=None):
    return list(parallel_files(str(folder), ("de", "en"), "dataset.train", names, origin))


@pytest.mark.parametrize(
    ("german", "english", "name", "pairs"),
    [
        (
            "ein Hund \r\n\nzwei\u2028Hunde\n",
            "a dog\nnothing\ntwo dogs",
            "train.de",
            [("ein Hund", "a dog"), ("", "nothing"), ("zwei\u2028Hunde", "two dogs")],
        ),
        ("eins\nzwei\n", "one\ntwo\n", "train.de.gz", [("eins", "one"), ("zwei", "two")]),
        ("\ufeffeins\n", "one\n", "train.de", [("eins", "one")]),
    ],
    ids=["stripped", "one file compressed", "byte order mark"],
)
def test_lines_are_read_in_pairs(tmp_path, german, english, name, pairs):
    write(tmp_path, name, german)
    write(tmp_path, "train.en", english)
    assert read(tmp_path) == pairs


def test_several_names_are_read_in_turn_with_lang_replaced(tmp_path):
    for language, word in (("de", "eins"), ("en", "one")):
        write(tmp_path, f"news.{language}", f"{word}\n")
        write(tmp_path, f"{language}/books.txt", f"{word} {word}\n")
    files = parallel_files(str(tmp_path), ("de", "en"), "dataset.train", ["news", "LANG/books.txt"])
    assert list(files) == list(files) == [("eins", "one"), ("eins eins", "one one")]


@pytest.mark.parametrize(
    ("german", "english", "message"),
    [
        (b"eins\n", None, r"no file .*/train.en \(or train.en.gz\).*dataset.train"),
        (b"eins\nzwei\ndrei\n", b"one\ntwo\n", "train.en has 2 lines and .*train.de more"),
        (b"eins\nf\xfcnf\n", b"one\ntwo\n", "line 2 of .*train.de is not in UTF-8"),
        (gzip.compress(b"eins\n" * 5000, mtime=0)[:-20], b"one\n" * 5000, "train.de.gz cannot be read after line"),
        (b"\x1f\x8bno archive", b"one\n", "train.de.gz cannot be read after line 0"),
    ],
)
def test_files_that_are_no_pairs_of_lines_are_refused(tmp_path, german, english, message):
    (tmp_path / ("train.de.gz" if german.startswith(b"\x1f") else "train.de")).write_bytes(german)
    if english is not None:
        (tmp_path / "train.en").write_bytes(english)
    assert_refused(message, partial(read, tmp_path))


def test_source_of_a_missing_file_and_names_that_are_none_are_told(tmp_path):
    assert_refused("it comes from example.org/corpus", partial(read, tmp_path, origin="example.org/corpus"))
    for names in ([], 3, [3], None):
        assert_refused(re.escape(f"dataset.train={names}: must be a name"), partial(read, tmp_path, names))
