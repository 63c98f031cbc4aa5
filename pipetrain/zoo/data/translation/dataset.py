"""Data sets of translation: two splits of sentence pairs, and what a model and a search must know of them."""

from collections.abc import Iterable, Sequence
from functools import cached_property, partial
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from pipetrain.data.files.cache import cached_array
from pipetrain.data.order import length_buckets
from pipetrain.engine.errors import ConfigError, check_whole
from pipetrain.engine.tensors import Tensors
from pipetrain.zoo.data.vocabulary import BEGINNING, END, PADDING, Ids, Lines, SentenceVocabulary, digest, pad
from pipetrain.zoo.decoding import Generation, SpecialTokens

ParallelText = Iterable[tuple[str, str]]
"""(source, target) sentences, from the first at each iteration."""


class Sentences:
    """Many sentences in one array; a list of lists would take ten times the memory.

    The array holds the number of sentences, their lengths, and then their ids.
    """

    def __init__(self, array: Ids) -> None:
        count = int(array[0])
        self.lengths: list[int] = array[1 : count + 1].tolist()
        self._ids = array[count + 1 :]
        self._ends = np.cumsum([0, *self.lengths])

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> list[int]:
        ids: list[int] = self._ids[self._ends[index] : self._ends[index + 1]].tolist()
        return ids


def as_array(sentences: Iterable[Sequence[int]]) -> Ids:
    """The array that holds these sentences."""
    lengths: list[int] = []

    def counted(ids: Sequence[int]) -> Sequence[int]:
        lengths.append(len(ids))
        return ids

    ids = np.fromiter(chain.from_iterable(map(counted, sentences)), np.int32)
    return np.concatenate([np.array([len(lengths), *lengths], np.int32), ids])


def encode_sentences(lines: Lines, vocabulary: SentenceVocabulary) -> Sentences:
    """The lines as ids, without special tokens, from the cache if they have been encoded before.

    All processes share the memory of the cached file.
    """
    name = f"tokens-{digest(chain([vocabulary.sha256], lines()))[:32]}.npy"
    return Sentences(cached_array(name, lambda: as_array(vocabulary.encode_lines(lines())), mapped=True))


Pair = tuple[tuple[Tensor, Tensor], Tensor]
"""((source and an end mark, a beginning mark and the target), the target and an end mark): int64 (positions,) each."""


class SentencePairs:
    """One split; minibatches are of similar lengths, and padded.

    Args:
        sources, targets: the sentences, without special tokens.
        kept: which of them are samples, in order; None for all.
        batch_tokens: positions of a minibatch at most, sentences times the longest of them; None for any number.
    """

    def __init__(
        self, sources: Sentences, targets: Sentences, kept: Sequence[int] | None = None, batch_tokens: int | None = None
    ) -> None:
        self.sources, self.targets = sources, targets
        self.kept = range(len(sources)) if kept is None else kept
        self.batch_tokens = batch_tokens

    def __len__(self) -> int:
        return len(self.kept)

    def __getitem__(self, index: int) -> Pair:
        place = self.kept[index]
        target = self.targets[place]
        inputs = self.source(index), torch.tensor([BEGINNING, *target])
        return inputs, torch.tensor([*target, END])

    def source(self, index: int) -> Tensor:
        """Encoder input of sample `index`."""
        return torch.tensor([*self.sources[self.kept[index]], END])

    def batches(self, batch_size: int, samples: int) -> list[list[int]]:
        """Minibatches of the first `samples` samples, at most `batch_size` in each."""
        sources, targets = self.sources.lengths, self.targets.lengths
        lengths = [(sources[place] + 1, targets[place] + 1) for place in self.kept[:samples]]
        return length_buckets(lengths, batch_size, self.batch_tokens)

    def collate(self, pairs: Sequence[Pair]) -> tuple[Tensors, Tensors]:
        """The sources and the targets as inputs, and the targets, each (n, positions) and padded."""
        sources, prefixes = zip(*(inputs for inputs, _ in pairs), strict=True)
        return (pad(sources), pad(prefixes)), (pad(target for _, target in pairs),)


class TranslationDataset:
    """Sentence pairs to train and evaluate on; the vocabularies are learned from the training text.

    Training leaves out pairs with an empty or too long sentence, evaluation none.

    Args:
        tokens: `bpe` or `words`.
        vocabulary_size: tokens at most, of each language or of both together; None for all words.
        joint: True if both languages have one vocabulary.
        bpe_mark: how subwords end inside words, in text that is cut into subwords already; None if it is not.
        max_length: tokens of a sentence at most, in training; None for any number.
        batch_tokens: positions of a minibatch at most; None for any number.

    Raises:
        ConfigError: no pair is left to train on, or a setting is out of its range.
    """

    def __init__(  # noqa: PLR0913  (one for each setting of the choices, by name)
        self,
        train: ParallelText,
        evaluation: ParallelText,
        *,
        tokens: str = "bpe",
        vocabulary_size: int | None = 8000,
        joint: bool = False,
        bpe_mark: str | None = None,
        max_length: int | None = 256,
        batch_tokens: int | None = 4096,
    ) -> None:
        for name, limit in (("max_length", max_length), ("batch_tokens", batch_tokens)):
            if limit is not None:
                check_whole(f"dataset.{name}", limit, least=1, otherwise="or null for any number")

        def learned(*sides: int) -> SentenceVocabulary:
            return SentenceVocabulary.learned(
                lambda: chain.from_iterable(_side(train, side) for side in sides), tokens, vocabulary_size
            )

        self._evaluation, self._bpe_mark = evaluation, bpe_mark
        self._source = learned(0, 1) if joint else learned(0)
        self._target = self._source if joint else learned(1)
        self.source_vocabulary_size, self.target_vocabulary_size = self._source.size, self._target.size
        self.vocabulary_sha256 = f"{self._source.sha256} {self._target.sha256}"
        self.joint_vocabulary = joint
        self.padding = PADDING
        pairs = self._encoded(train)
        kept, self.notes = _kept(pairs, max_length)
        self.train = SentencePairs(*pairs, kept, batch_tokens)
        self._longest = 3 * max(pairs[1].lengths[place] for place in self.train.kept) // 2  # of a translation
        self.eval = SentencePairs(*self._encoded(evaluation), batch_tokens=batch_tokens)

    @cached_property
    def decoding(self) -> Generation:
        """Translation of the evaluation split, measured by BLEU."""
        return Generation(
            sources=[(self.eval.source(index),) for index in range(len(self.eval))],
            references=[[self._plain(target)] for target in _side(self._evaluation, 1)],
            detokenize=lambda ids: self._plain(self._target.decode(ids)),
            special=SpecialTokens(BEGINNING, END, PADDING),
            longest=self._longest,
            longest_by_source=2.0,
        )

    def _plain(self, text: str) -> str:
        """The text without the marks of its subwords."""
        return text if self._bpe_mark is None else f"{text} ".replace(f"{self._bpe_mark} ", "").rstrip()

    def _encoded(self, text: ParallelText) -> tuple[Sentences, Sentences]:
        vocabularies = self._source, self._target
        source, target = (encode_sentences(partial(_side, text, side), vocabularies[side]) for side in (0, 1))
        return source, target


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
        raise ConfigError("dataset: the training files have no lines")
    if not kept:
        raise ConfigError(f"dataset: no pair of sentences to train on: of {len(lengths)}, {reasons} are left out")
    return (kept, [f"training leaves out {reasons}, of {len(lengths)} pairs"]) if reasons else (None, [])
