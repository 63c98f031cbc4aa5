"""Sentences of six novels, and which of them each is from."""

import pytest

from pipetrain.data.text.austen_novels import austen_novels, sentences


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_sentences_end_at_full_stops_and_not_behind_a_title():
    text = 'CHAPTER I\n\nMr. Knightley walked to\nHartfield all the same. "You are right!" said Mrs. Weston to him.'
    found = list(sentences(text))
    assert found[0] == "Mr Knightley walked to Hartfield all the same."
    assert found[1].startswith('"You are right!"')


def test_bundled_novels_give_sentences_of_six_classes():
    data = austen_novels()
    assert data.classes[0] == "Emma"
    assert len(data.classes) == 6
    counts = data.eval.targets.bincount().tolist()
    assert len(counts) == 6
    assert min(counts) > 250
    assert 25_000 < len(data.train) + len(data.eval) < 30_000
    assert data.vocabulary_size == 8000
