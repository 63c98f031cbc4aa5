"""The sentences of a text as token ids, made once and then read from a cache."""

from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np

from pipetrain.data.cache import cached_array
from pipetrain.data.vocabulary import Ids, Lines, SentenceVocabulary, lines_digest


class Sentences:
    """Many sentences in one array; lists of as many lists would take ten times the memory.

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


def encoded(lines: Lines, vocabulary: SentenceVocabulary) -> Sentences:
    """The lines as ids, without special tokens, from the cache if they have been encoded before.

    All processes share the memory of the cached file.
    """
    name = f"tokens-{lines_digest(vocabulary.sha256, lines)}.npy"
    return Sentences(cached_array(name, lambda: as_array(vocabulary.encode_lines(lines())), mapped=True))
