"""BLEU of a corpus, as sacrebleu defines it (Post 2018)."""

from collections.abc import Sequence
from itertools import zip_longest

from pipetrain.decoding.measured import Measured


def bleu(texts: Sequence[str], references: Sequence[Sequence[str]]) -> Measured:
    """BLEU from 0 to 100, with sacrebleu's signature.

    Args:
        texts: generated, detokenized.
        references: those of each text, detokenized; their number may differ.
    """
    from sacrebleu.metrics.bleu import BLEU  # takes a third of a second, which only those who decode shall wait

    metric = BLEU()
    score = metric.corpus_score(list(texts), [list(stream) for stream in zip_longest(*references)])
    return Measured(float(score.score), str(metric.get_signature()))
