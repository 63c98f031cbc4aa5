"""Token ids in nanoGPT's files."""

import json
from functools import partial

import numpy as np
import pytest
from support.refusals import assert_refused
from support.texts import prose

from pipetrain.zoo.data.text.token_files import token_files
from pipetrain.zoo.data.vocabulary import TokenizerVocabulary


@pytest.fixture
def root(tmp_path):
    for name, count in (("train", 50), ("val", 20)):
        np.arange(count, dtype=np.uint16).tofile(tmp_path / f"{name}.bin")
    return tmp_path


def test_tokens_of_files_are_those_written(root):
    data = token_files(str(root), vocabulary_size=50, positions=7)
    assert (len(data.train), len(data.eval), data.vocabulary_size, data.vocabulary) == (7, 2, 50, None)
    assert data.train[6][1].tolist() == list(range(43, 50))
    assert data.train.targets is None  # a file may be larger than memory


@pytest.mark.parametrize("characters", [[chr(97 + i) for i in range(50)], {str(i): chr(97 + i) for i in range(50)}])
def test_meta_json_tells_the_vocabulary(root, characters):
    (root / "meta.json").write_text(json.dumps({"vocab_size": 50, "itos": characters}), encoding="utf-8")
    data = token_files(str(root), positions=7)
    assert data.vocabulary_size == 50
    assert data.vocabulary.decode(data.train[0][0].tolist()) == "abcdefg"


def test_tokenizer_of_a_file_tells_the_vocabulary(root):
    TokenizerVocabulary.byte_pairs(prose(), 290).tokenizer.save(str(root / "tokenizer.json"))
    data = token_files(str(root), tokenizer=str(root / "tokenizer.json"), positions=7)
    assert data.vocabulary_size == data.vocabulary.size == 290


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda root: (root / "val.bin").unlink(), "no file /.*/val.bin"),
        (lambda root: (root / "val.bin").write_bytes(b"abc"), "val.bin has 3 bytes"),
        (lambda root: (root / "val.bin").write_bytes(b""), "val.bin has 0 bytes"),
        (lambda root: np.full(20, 60, np.uint16).tofile(root / "val.bin"), "val.bin has token ids up to 60, .* 61"),
        (lambda root: (root / "meta.json").write_text("{"), "meta.json is damaged"),
    ],
)
def test_damaged_token_files_are_refused_by_name(root, damage, message):
    damage(root)
    assert_refused(message, partial(token_files, str(root), vocabulary_size=50, positions=7))


def test_unknown_vocabulary_is_requested_and_pickle_not_read(root):
    (root / "meta.pkl").write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")
    assert_refused("vocabulary_size is not set, .*meta.pkl is not read", partial(token_files, str(root)))
