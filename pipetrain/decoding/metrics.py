"""Metrics of generated texts: BLEU as sacrebleu defines it, and METEOR as nltk computes it."""

import statistics
from collections.abc import Sequence
from importlib.metadata import version
from itertools import zip_longest
from typing import Any, NamedTuple


class MetricValue(NamedTuple):
    """A metric's value, and how it was computed: the library's version and settings."""

    value: float
    signature: str


def bleu(texts: Sequence[str], references: Sequence[Sequence[str]]) -> MetricValue:
    """BLEU from 0 to 100, with sacrebleu's signature, of detokenized texts; the number of references may differ."""
    from sacrebleu.metrics.bleu import BLEU  # takes a third of a second, which only those who decode shall wait

    metric = BLEU()
    score = metric.corpus_score(list(texts), [list(stream) for stream in zip_longest(*references)])
    return MetricValue(float(score.score), str(metric.get_signature()))


def meteor(texts: Sequence[str], references: Sequence[Sequence[str]]) -> MetricValue:
    """The mean of the texts' METEOR scores from 0 to 1, each of its best reference.

    Words are what blanks separate. Without WordNet's data only equal words and equal stems match.
    """
    from nltk.translate.meteor_score import meteor_score  # takes seconds, which only those who decode shall wait

    words, matches = _word_net()
    scores = [
        meteor_score([reference.split() for reference in own], text.split(), wordnet=words)
        for text, own in zip(texts, references, strict=True)
    ]
    return MetricValue(statistics.fmean(scores), f"nltk:{version('nltk')}|matches:{matches}")


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
