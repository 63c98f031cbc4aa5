"""Data of a language model: windows of two sequences of tokens, and their vocabulary."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipetrain.engine.errors import ConfigError, check_whole
from pipetrain.zoo.data.vocabulary import CharacterVocabulary, TokenizerVocabulary, Vocabulary, WordVocabulary

_CHECKED_FIRST = 2**28
"""Tokens that are checked before the start; the ids of all are checked when they are read."""


class Windows:
    """Sample i is the i-th window of `positions` tokens: inputs and targets, each int64 (positions,).

    The target of a token is the next one. The last tokens, too few for a window, are left out.

    Args:
        tokens: ids of any integer type, (tokens,); may be mapped from a file.
        vocabulary_size: every id is below it.
        positions: of a sample.
        name: of the file, for errors.

    Raises:
        ConfigError: there is no whole window, or an id is out of range.
    """

    def __init__(self, tokens: NDArray[Any], vocabulary_size: int, positions: int, name: str) -> None:
        check_whole("dataset.positions", positions, least=1)
        self._tokens = tokens
        self._vocabulary_size = vocabulary_size
        self._name = name
        self.positions = positions
        self._windows = (len(tokens) - 1) // positions
        if self._windows < 1:
            raise ConfigError(
                f"dataset.positions={positions}: a sample takes {positions + 1} tokens, and {name} has {len(tokens)}"
            )
        self._check(tokens[:_CHECKED_FIRST])

    def __len__(self) -> int:
        return self._windows

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if not 0 <= index < self._windows:
            raise IndexError(index)
        start = index * self.positions
        ids = self._tokens[start : start + self.positions + 1].astype(np.int64)
        self._check(ids)
        window = torch.from_numpy(ids)
        return window[:-1], window[1:]

    @property
    def targets(self) -> Tensor | None:
        """Targets of all samples, (samples, positions); None if they are not in memory."""
        if isinstance(self._tokens, np.memmap):
            return None
        used = self._tokens[1 : self._windows * self.positions + 1]
        return torch.from_numpy(used).view(self._windows, self.positions)

    def _check(self, ids: NDArray[Any]) -> None:
        largest = int(ids.max())
        if largest >= self._vocabulary_size or ids.min() < 0:
            raise ConfigError(
                f"dataset.vocabulary_size={self._vocabulary_size}: {self._name} has token ids up to {largest}, which "
                f"need a vocabulary of at least {largest + 1}; a tokenizer or meta.json may be of other data"
            )


class CarriedWindows(Windows):
    """Windows in rows, so that a state can be carried on from minibatch to minibatch.

    A minibatch has a row for each of `batch_size` equally long stretches of the text; row b of the next minibatch
    continues row b of this one. Windows that fill no minibatch are left out.
    """

    ordered: ClassVar[bool] = True

    def batches(self, batch_size: int, samples: int) -> list[list[int]]:
        """The windows of each minibatch, of the first `samples` ones."""
        rows = min(batch_size, samples)
        length = samples // rows
        return [[row * length + step for row in range(rows)] for step in range(length)]


@dataclass(frozen=True)
class LanguageData:
    """Data of a language model; `max_length` is the number of positions of a sample."""

    train: Windows
    eval: Windows
    vocabulary_size: int
    max_length: int
    vocabulary: Vocabulary | None = None

    @property
    def vocabulary_sha256(self) -> str | None:
        """Hash of the vocabulary; None if it has none."""
        return None if self.vocabulary is None else self.vocabulary.sha256


def language_data(
    texts: tuple[str, str], names: Sequence[str], tokens: str, size: int | None, positions: int, *, carried: bool
) -> LanguageData:
    """The data of a training and an evaluation text.

    Subwords and words are learned from the training text alone, characters from both.

    Args:
        texts: for training and for evaluation.
        names: of both, for errors.
        tokens: `characters`, `bpe` (subwords over bytes) or `words`.
        size: of the vocabulary at most; None: all characters or words.
        positions: of a sample.
        carried: True if each minibatch continues the one before it.

    Raises:
        ConfigError: there is no such kind of tokens, the vocabulary is too small, or a text too short for a sample.
    """
    if size is not None:
        check_whole("dataset.vocabulary_size", size, least=3, otherwise="or null for all characters or words")
    vocabulary: Vocabulary
    if tokens == "characters":
        vocabulary = CharacterVocabulary.of("".join(texts))
        if size is not None and size < vocabulary.size:
            raise ConfigError(
                f"dataset.vocabulary_size={size}: the texts have {vocabulary.size} different characters; "
                "dataset.vocabulary_size=null takes all of them"
            )
    elif tokens == "words":
        vocabulary = WordVocabulary.of(texts[0], size)
    elif tokens == "bpe":
        vocabulary = TokenizerVocabulary.byte_pairs(texts[0], size)
    else:
        raise ConfigError(f"dataset.tokens={tokens}: must be one of characters, bpe, words")
    windows = CarriedWindows if carried else Windows
    train, evaluation = (
        windows(vocabulary.encode_once(text), vocabulary.size, positions, name)
        for text, name in zip(texts, names, strict=True)
    )
    return LanguageData(train, evaluation, vocabulary.size, positions, vocabulary)
