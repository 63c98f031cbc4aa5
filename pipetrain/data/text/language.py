"""Data of a language model: windows of two sequences of tokens, and their vocabulary."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipetrain.data.vocabulary import CharacterVocabulary, TokenizerVocabulary, Vocabulary, WordVocabulary
from pipetrain.errors import ConfigError, check_whole


@dataclass(frozen=True)
class TokenSource:
    """A sequence of tokens, and where it comes from.

    Attributes:
        tokens: ids of any integer type, (tokens,); may be mapped from a file.
        vocabulary_size: every id is below it.
        name: of the file, for errors.
    """

    tokens: NDArray[Any]
    vocabulary_size: int
    name: str

    def part(self, start: int, count: int) -> NDArray[np.int64]:
        """`count` ids from `start` on.

        Raises:
            ConfigError: one is out of range.
        """
        ids = self.tokens[start : start + count].astype(np.int64)
        largest = int(ids.max())
        if largest >= self.vocabulary_size or ids.min() < 0:
            raise self.out_of_range(largest)
        return ids

    def out_of_range(self, largest: int) -> ConfigError:
        """The error of an id that the vocabulary does not have."""
        return ConfigError(
            f"dataset.vocabulary_size={self.vocabulary_size}: {self.name} has token ids up to {largest}, which need a "
            f"vocabulary of at least {largest + 1}; a tokenizer or meta.json may be of other data"
        )


class Windows:
    """Sample i is the i-th window of `positions` tokens: inputs and targets, each int64 (positions,).

    The target of a token is the next one. The last tokens, too few for a window, are left out.

    Args:
        source: the tokens.
        positions: of a sample.

    Raises:
        ConfigError: there is no whole window.
    """

    def __init__(self, source: TokenSource, positions: int) -> None:
        check_whole("dataset.positions", positions, least=1)
        self._source = source
        self.positions = positions
        self._windows = (len(source.tokens) - 1) // positions
        if self._windows < 1:
            raise ConfigError(
                f"dataset.positions={positions}: {source.name} has {len(source.tokens)} tokens, and a sample takes "
                f"{positions + 1}"
            )

    def __len__(self) -> int:
        return self._windows

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if not 0 <= index < self._windows:
            raise IndexError(index)
        ids = torch.from_numpy(self._source.part(index * self.positions, self.positions + 1))
        return ids[:-1], ids[1:]

    @property
    def targets(self) -> Tensor | None:
        """Targets of all samples, (samples, positions); None if they are not in memory."""
        tokens = self._source.tokens
        if isinstance(tokens, np.memmap):
            return None
        used = tokens[1 : self._windows * self.positions + 1]
        return torch.from_numpy(used).view(self._windows, self.positions)


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


KINDS = ("characters", "bpe", "words")


@dataclass(frozen=True)
class LanguageData:
    """Data of a language model.

    Attributes:
        train, eval: windows of tokens.
        vocabulary_size: token ids are below it.
        max_length: positions of a sample.
        vocabulary: what the tokens mean; None if unknown.
    """

    train: Windows
    eval: Windows
    vocabulary_size: int
    max_length: int
    vocabulary: Vocabulary | None = None

    @property
    def vocabulary_sha256(self) -> str | None:
        """Hash of the vocabulary; None if it has none."""
        return None if self.vocabulary is None else self.vocabulary.sha256


@dataclass(frozen=True)
class TokenKind:
    """Kind of tokens and size of their vocabulary.

    Attributes:
        kind: `characters`, `bpe` (subwords over bytes) or `words`.
        size: of the vocabulary at most; None: all characters or words.

    Raises:
        ConfigError: there is no such kind, or the size is too small.
    """

    kind: str
    size: int | None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"dataset.tokens={self.kind}: one of {', '.join(KINDS)}")
        if self.size is not None:
            check_whole("dataset.vocabulary_size", self.size, least=3, otherwise="or null for all characters or words")

    def vocabulary(self, train: str, evaluation: str) -> Vocabulary:
        """The vocabulary of a text: subwords and words of its training part alone, characters of both."""
        if self.kind == "characters":
            return CharacterVocabulary.of(train + evaluation)
        if self.kind == "words":
            return WordVocabulary.of(train, self.size)
        return TokenizerVocabulary.byte_pairs(train, self.size)


def language_data(
    texts: tuple[str, str], names: Sequence[str], tokens: TokenKind, positions: int, *, carried: bool
) -> LanguageData:
    """The data of a training and an evaluation text.

    Args:
        texts: both.
        names: of both, for errors.
        tokens: how they become tokens.
        positions: of a sample.
        carried: True if minibatches continue one another.

    Raises:
        ConfigError: a text is too short for a sample.
    """
    vocabulary = tokens.vocabulary(*texts)
    splits = [
        windows(TokenSource(vocabulary.encode_once(text), vocabulary.size, name), positions, carried=carried)
        for text, name in zip(texts, names, strict=True)
    ]
    return LanguageData(splits[0], splits[1], vocabulary.size, positions, vocabulary)


def windows(source: TokenSource, positions: int, *, carried: bool) -> Windows:
    """The samples of a sequence."""
    return CarriedWindows(source, positions) if carried else Windows(source, positions)
