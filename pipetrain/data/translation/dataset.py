"""Data sets of translation: two splits of sentence pairs, and what a model and a search must know of them."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from pipetrain.data.translation.pairs import SentencePairs, Sentences, encode_sentences
from pipetrain.data.vocabulary import BEGINNING, END, PADDING, Lines, SentenceVocabulary
from pipetrain.decoding import Generation, SpecialTokens
from pipetrain.errors import ConfigError, check_whole

ParallelText = Iterable[tuple[str, str]]
"""(source, target) sentences, from the first at each iteration."""


@dataclass(frozen=True)
class TokenSettings:
    """Settings of tokens and minibatches of sentence pairs.

    Attributes:
        tokens: `bpe` or `words`.
        vocabulary_size: tokens at most, of each language or of both together; None for all words.
        joint: True if both languages have one vocabulary.
        bpe_mark: how subwords end inside words, in text that is cut into subwords already; None if it is not.
        max_length: tokens of a sentence at most, in training; None for any number.
        batch_tokens: positions of a minibatch at most; None for any number.

    Raises:
        ConfigError: one is out of its range.
    """

    tokens: str = "bpe"
    vocabulary_size: int | None = 8000
    joint: bool = False
    bpe_mark: str | None = None
    max_length: int | None = 256
    batch_tokens: int | None = 4096

    def __post_init__(self) -> None:
        for name in ("max_length", "batch_tokens"):
            if getattr(self, name) is not None:
                check_whole(f"dataset.{name}", getattr(self, name), least=1, otherwise="or null for any number")

    def vocabularies(self, text: ParallelText) -> tuple[SentenceVocabulary, SentenceVocabulary]:
        """Vocabularies of source and target."""

        def learned(lines: Lines) -> SentenceVocabulary:
            return SentenceVocabulary.learned(lines, self.tokens, self.vocabulary_size)

        if self.joint:
            both = learned(lambda: chain(_side(text, 0), _side(text, 1)))
            return both, both
        return learned(lambda: _side(text, 0)), learned(lambda: _side(text, 1))

    def plain(self, text: str) -> str:
        """The text without the marks of its subwords."""
        return text if self.bpe_mark is None else f"{text} ".replace(f"{self.bpe_mark} ", "").rstrip()


class TranslationDataset:
    """Sentence pairs to train and evaluate on; the vocabularies are those of the training text.

    Attributes:
        train, eval: the splits. Training leaves out pairs with an empty or too long sentence, evaluation none.
        source_vocabulary_size, target_vocabulary_size, joint_vocabulary, padding: what a model must know.
        notes: what the user should know.

    Raises:
        ConfigError: no pair is left to train on, or a setting is out of its range.
    """

    def __init__(self, train: ParallelText, evaluation: ParallelText, settings: TokenSettings) -> None:
        self._settings, self._evaluation = settings, evaluation
        self._source, self._target = settings.vocabularies(train)
        self.source_vocabulary_size, self.target_vocabulary_size = self._source.size, self._target.size
        self.joint_vocabulary = settings.joint
        self.padding = PADDING
        pairs = self._encoded(train)
        kept, self.notes = _kept(pairs, settings.max_length)
        self.train = SentencePairs(*pairs, kept, settings.batch_tokens)
        self._longest = 3 * max(pairs[1].lengths[place] for place in self.train.kept) // 2  # of a translation
        self.eval = SentencePairs(*self._encoded(evaluation), batch_tokens=settings.batch_tokens)

    @property
    def vocabulary_sha256(self) -> str:
        """Hashes of both vocabularies."""
        return f"{self._source.sha256} {self._target.sha256}"

    @cached_property
    def decoding(self) -> Generation:
        """Translation of the evaluation split, measured by BLEU."""
        return Generation(
            sources=[(self.eval.source(index),) for index in range(len(self.eval))],
            references=[[self._settings.plain(target)] for target in _side(self._evaluation, 1)],
            detokenize=lambda ids: self._settings.plain(self._target.decode(ids)),
            special=SpecialTokens(BEGINNING, END, PADDING),
            longest=self._longest,
            longest_by_source=2.0,
        )

    def _encoded(self, text: ParallelText) -> tuple[Sentences, Sentences]:
        return encode_sentences(lambda: _side(text, 0), self._source), encode_sentences(
            lambda: _side(text, 1), self._target
        )


def _side(text: ParallelText, side: int) -> Iterable[str]:
    return (pair[side] for pair in text)


def _kept(pairs: tuple[Sentences, Sentences], max_length: int | None) -> tuple[list[int] | None, list[str]]:
    """The pairs to train on, None for all, and notes on the pairs left out."""
    lengths = list(zip(pairs[0].lengths, pairs[1].lengths, strict=True))
    filled = [i for i, each in enumerate(lengths) if min(each)]
    kept = filled if max_length is None else [i for i in filled if max(lengths[i]) <= max_length]
    left_out = {
        "with an empty line": len(lengths) - len(filled),
        f"with more than dataset.max_length={max_length} tokens in a line": len(filled) - len(kept),
    }
    reasons = " and ".join(f"{count} {why}" for why, count in left_out.items() if count)
    if not lengths:
        raise ConfigError("dataset: the files to train on have no lines")
    if not kept:
        raise ConfigError(f"dataset: no pair of sentences to train on: of {len(lengths)}, {reasons} are left out")
    return (kept, [f"training leaves out {reasons}, of {len(lengths)} pairs"]) if reasons else (None, [])
