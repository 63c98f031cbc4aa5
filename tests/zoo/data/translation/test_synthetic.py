import re
import sys

import pytest
from support.refusals import assert_refused

from pipetrain.zoo.data.translation.synthetic import synthetic_en_de

WORDS = r"am \w+tag, dem [a-zß]+ \w+ [a-zäöüß]+: [a-zäöüß]+ \w+( \w+)?"
FIGURES = r"\w+(tag|woch), \d+\. \w+ \d{4}: [a-zäöüß]+ \w+( \w+)?"


@pytest.fixture
def data():
    return synthetic_en_de(train=60, eval=20, vocabulary_size=300)


def texts(split, vocabulary):
    return [vocabulary.decode(split[i][1].tolist()) for i in range(len(split))]


def test_translations_are_dates_and_a_quantity(data):
    german = [reference for (reference,) in data.decoding.references]
    written = [bool(re.fullmatch(WORDS.replace("tag", "(tag|woch)"), text)) for text in german]
    assert all(words or re.fullmatch(FIGURES, text) for words, text in zip(written, german, strict=True))
    assert {True, False} == set(written)


def test_pairs_depend_on_the_seed_of_the_data_alone(data):
    again, other = (synthetic_en_de(train=60, eval=20, vocabulary_size=300, seed=seed) for seed in (0, 1))
    assert data.decoding.references == again.decoding.references != other.decoding.references


def test_evaluation_pairs_are_others_than_those_trained_on(data):
    trained = {tuple(data.train[i][1].tolist()) for i in range(60)}
    assert not any(tuple(data.eval[i][1].tolist()) in trained for i in range(20))


def test_missing_packages_are_named_with_their_extra(monkeypatch):
    for name in ("babel", "num2words"):
        monkeypatch.setitem(sys.modules, name, None)
    assert_refused(r"synthetic_en_de needs babel and num2words.*\"pipetrain\[translation\]\"", synthetic_en_de)
