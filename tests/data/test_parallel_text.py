import re

import pytest
from support.cli import pipetrain, run, summary

from pipetrain.data.parallel_text import parallel_text
from pipetrain.errors import ConfigError

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


def test_missing_split_is_refused_with_the_setting_that_names_it(tmp_path):
    folder = written(tmp_path / "data", train=SENTENCES)
    with pytest.raises(ConfigError, match=rf"dataset.eval=val: no file {folder}/val.de \(or val.de.gz\)"):
        parallel_text(str(folder))


@pytest.mark.slow
def test_command_trains_on_files_reports_bleu_and_evaluates_another_split(tmp_path):
    folder = written(tmp_path / "data", train=[*SENTENCES[:200], ""], val=SENTENCES[200:], test=SENTENCES[::40])
    settings = (*TINY, "dataset=parallel_text", "dataset.tokens=words", "dataset.vocabulary_size=null")
    done = run(tmp_path / "run", f"dataset.root={folder}", *settings)
    assert "training leaves out 1 with an empty line, of 201 pairs" in done.stdout + done.stderr
    final = summary(tmp_path / "run")["final"]
    assert final["bleu"] > 20
    assert final["perplexity"] < 6
    evaluated = pipetrain("eval", str(tmp_path / "run"), "dataset.eval=test", "--json", cwd=tmp_path)
    assert evaluated.returncode == 0, evaluated.stderr
    assert '"bleu"' in evaluated.stdout
    (folder / "val.en").write_text("one\n")
    refused = run(tmp_path / "other", f"dataset.root={folder}", *settings, code=2)
    assert re.search(r"val.en has 1 lines and .*val.de more", refused.stderr)
