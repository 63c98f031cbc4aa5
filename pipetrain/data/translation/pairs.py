"""Sentences as token ids, and pairs of them with their translation: one split of a translation data set."""

from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from pipetrain.data.cache import cached_array
from pipetrain.data.order import length_buckets
from pipetrain.data.vocabulary import BEGINNING, END, Ids, Lines, SentenceVocabulary, lines_digest, pad
from pipetrain.tensors import Tensors


class Sentences:
    """Many sentences in one array; a list of lists would take ten times the memory.

    Args:
        array: the number of sentences, their lengths, and then their ids.
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
    name = f"tokens-{lines_digest(vocabulary.sha256, lines)}.npy"
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
