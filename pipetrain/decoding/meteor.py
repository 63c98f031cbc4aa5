"""METEOR, as nltk computes it (Banerjee and Lavie 2005), with WordNet's synonyms where their data are installed."""

import statistics
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from pipetrain.decoding.measured import Measured


def meteor(texts: Sequence[str], references: Sequence[Sequence[str]]) -> Measured:
    """The mean of the texts' METEOR scores from 0 to 1, each of its best reference.

    Words are what blanks separate. Without WordNet's data only equal words and equal stems match.
    """
    from nltk.translate.meteor_score import meteor_score  # takes seconds, which only those who decode shall wait

    words, matches = _word_net()
    scores = [
        meteor_score([reference.split() for reference in own], text.split(), wordnet=words)
        for text, own in zip(texts, references, strict=True)
    ]
    return Measured(statistics.fmean(scores), f"nltk:{version('nltk')}|matches:{matches}")


class _NoSynonyms:
    """A dictionary in which no word has a synonym, in WordNet's place."""

    def synsets(self, _word: str) -> Sequence[Any]:
        return ()


def _word_net() -> tuple[Any, str]:
    from nltk.corpus import wordnet

    try:
        wordnet.ensure_loaded()
    except LookupError:
        return _NoSynonyms(), "exact,stem"
    return wordnet, "exact,stem,synonym"
