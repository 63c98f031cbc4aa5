"""The translation data sets of the papers, on small files under their published names and in their layout."""

import pytest
from support.refusals import assert_refused

from pipetrain.runner.config.choices import section
from pipetrain.runner.config.instantiate import Target

GERMAN = ("das ha@@ us ist k@@ lein .", "ein ha@@ us .", "das ist gu@@ t .")
ENGLISH = ("the house is sm@@ all .", "a house .", "that is goo@@ d .")
LINES = {"de": GERMAN, "en": ENGLISH}
PUBLISHED = {
    "iwslt14_de_en": (("train", "valid", "test"), ("code", "tmp/train.tags.de-en.tok.de")),
    "wmt16_en_de": (
        ("train.tok.clean.bpe.32000", "newstest2013.tok.bpe.32000", "newstest2014.tok.bpe.32000"),
        ("bpe.32000", "vocab.bpe.32000"),
    ),
    "wmt17_en_de": (("train", "valid", "test"), ("code", "tmp/train.de")),
}
"""Name -> the pairs of files in its folder, and files that lie beside them."""


def built(name, root, **options):
    """The data set of a choice, from a folder."""
    return Target.of("dataset", {**section("dataset", name), "root": str(root), **options}).build()


def written(folder, name):
    """The files of a choice: three pairs for training, the first two for evaluation, and an empty line in training."""
    pairs, others = PUBLISHED[name]
    for other in others:
        (folder / other).parent.mkdir(exist_ok=True)
        (folder / other).write_text("#version: 0.2\n")
    for split in pairs:
        for language, lines in LINES.items():
            chosen = [*lines, ""] if split == pairs[0] else lines[:2]
            (folder / f"{split}.{language}").write_text("".join(f"{line}\n" for line in chosen))
    return folder


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_files_become_dataset_with_joined_subwords(tmp_path, name):
    data = built(name, written(tmp_path, name))
    assert (len(data.train), len(data.eval)) == (3, 2)
    source, target = (GERMAN, ENGLISH) if name == "iwslt14_de_en" else (ENGLISH, GERMAN)
    tokens = [len({token for line in lines for token in line.split()}) for lines in (source, target)]
    both = len({token for line in (*source, *target) for token in line.split()})
    marks = 4
    expected = tokens if name == "iwslt14_de_en" else [both, both]
    assert [data.source_vocabulary_size, data.target_vocabulary_size] == [marks + each for each in expected]
    joined = "the house is small ." if name == "iwslt14_de_en" else "das haus ist klein ."
    assert data.decoding.references[0] == [joined]


@pytest.mark.parametrize("name", ["wmt16_en_de", "iwslt14_de_en"])
def test_other_published_splits_are_one_setting_away(tmp_path, name):
    pairs, _ = PUBLISHED[name]
    assert len(built(name, written(tmp_path, name), eval=pairs[-1]).eval) == 2


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("iwslt14_de_en", "train=train: no file .*/train.de .*it comes from .*iwslt14.sh"),
        ("wmt16_en_de", "no file .*/train.tok.clean.bpe.32000.en .*wmt16_en_de.tar.gz"),
        ("wmt17_en_de", "no file .*/train.en .*prepare-wmt14en2de.sh"),
    ],
)
def test_absent_files_are_told_with_where_they_come_from(tmp_path, name, message):
    assert_refused(message, built, name, tmp_path)
