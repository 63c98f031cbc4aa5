"""The sentences of a text as token ids, made once and then read from a cache."""

import hashlib
from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from pipetrain.data.cache import cached_file, write_cached
from pipetrain.data.sentence_vocabulary import Lines, SentenceVocabulary

_Ids = NDArray[np.int32]


class Sentences:
    """Many sentences in one array; lists of as many lists would take ten times the memory.

    Args:
        array: the number of sentences, their lengths, and then their ids.
    """

    def __init__(self, array: _Ids) -> None:
        count = int(array[0])
        self.lengths: list[int] = array[1 : count + 1].tolist()
        self._ids = array[count + 1 :]
        self._ends = np.cumsum([0, *self.lengths])

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> list[int]:
        ids: list[int] = self._ids[self._ends[index] : self._ends[index + 1]].tolist()
        return ids


def as_array(sentences: Iterable[Sequence[int]]) -> _Ids:
    """The array that holds these sentences."""
    lengths: list[int] = []

    def counted(ids: Sequence[int]) -> Sequence[int]:
        lengths.append(len(ids))
        return ids

    ids = np.fromiter(chain.from_iterable(map(counted, sentences)), np.int32)
    return np.concatenate([np.array([len(lengths), *lengths], np.int32), ids])


def encoded(lines: Lines, vocabulary: SentenceVocabulary) -> Sentences:
    """The lines as ids, without marks, from the cache if they have been encoded before.

    All processes share the memory of the cached file.
    """
    digest = hashlib.sha256(vocabulary.sha256.encode())
    for line in lines():
        digest.update(line.encode() + b"\n")
    path = cached_file(f"tokens-{digest.hexdigest()[:32]}.npy")
    try:
        return Sentences(np.load(path, mmap_mode="r", allow_pickle=False))
    except (OSError, ValueError, EOFError):  # there is none, or a damaged one
        array = as_array(vocabulary.encode(lines()))
        write_cached(path, lambda file: np.save(file, array, allow_pickle=False))
        return Sentences(array)
