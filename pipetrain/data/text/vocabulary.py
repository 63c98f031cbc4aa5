"""Vocabularies: text to token ids, and back."""

import hashlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from pipetrain.errors import ConfigError

Ids = NDArray[np.int32]
"""Token ids, (tokens,)."""

UNKNOWN, END = "<unk>", "<eos>"


class Vocabulary(ABC):
    """The tokens that a text is cut into; an id is a token's place among them."""

    @property
    @abstractmethod
    def size(self) -> int:
        """How many tokens there are."""

    @abstractmethod
    def encode(self, text: str) -> Ids:
        """The ids of a text.

        Raises:
            ConfigError: it has something that the vocabulary cannot express.
        """

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids."""

    @property
    @abstractmethod
    def sha256(self) -> str:
        """Of all that it consists of: the same for vocabularies that give the same ids."""


class CharacterVocabulary(Vocabulary):
    """A token for each character.

    Args:
        characters: in the order of their ids.
    """

    def __init__(self, characters: str) -> None:
        self._characters = characters
        order = sorted(range(len(characters)), key=lambda i: characters[i])
        self._points = _code_points("".join(characters[i] for i in order))
        self._ids = np.array(order, dtype=np.int32)

    @classmethod
    def of(cls, text: str) -> "CharacterVocabulary":
        """The characters of a text, sorted."""
        return cls("".join(sorted(set(text))))

    @property
    @override
    def size(self) -> int:
        return len(self._characters)

    @override
    def encode(self, text: str) -> Ids:
        points = _code_points(text)
        places = np.searchsorted(self._points, points).clip(max=self.size - 1)
        unknown = points[self._points[places] != points]
        if len(unknown):
            shown = ", ".join(repr(chr(point)) for point in np.unique(unknown)[:5])
            raise ConfigError(f"the text has characters that its vocabulary of {self.size} does not have: {shown}")
        ids: Ids = self._ids[places]
        return ids

    @override
    def decode(self, ids: Iterable[int]) -> str:
        return "".join(self._characters[i] for i in ids)

    @property
    @override
    def sha256(self) -> str:
        return digest([self._characters])


class WordVocabulary(Vocabulary):
    """A token for each word between blanks, and one for the end of a line; empty lines are left out.

    Args:
        words: in the order of their ids, `<unk>` for all others and `<eos>` among them.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self._words = list(words)
        self._ids = {word: i for i, word in enumerate(self._words)}

    @classmethod
    def of(cls, text: str, size: int | None = None) -> "WordVocabulary":
        """The `size` most frequent words of a text (None: all), equally frequent ones in the order of the alphabet."""
        counts = Counter(text.split())
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        kept = [END, UNKNOWN, *(word for word in ranked if word not in (END, UNKNOWN))]
        return cls(kept[:size])

    @property
    @override
    def size(self) -> int:
        return len(self._words)

    @override
    def encode(self, text: str) -> Ids:
        unknown, end = self._ids[UNKNOWN], self._ids[END]
        *lines, rest = text.split("\n")
        ids: list[int] = []
        for line in lines:
            if words := line.split():
                ids += [*(self._ids.get(word, unknown) for word in words), end]
        ids += [self._ids.get(word, unknown) for word in rest.split()]
        return np.array(ids, dtype=np.int32)

    @override
    def decode(self, ids: Iterable[int]) -> str:
        words = [self._words[i] for i in ids]
        return " ".join("\n" if word == END else word for word in words).replace(" \n ", "\n").replace(" \n", "\n")

    @property
    @override
    def sha256(self) -> str:
        return digest(self._words)


def digest(parts: Iterable[str]) -> str:
    """A hash of strings in their order."""
    found = hashlib.sha256()
    for part in parts:
        found.update(f"{len(part)}:{part}".encode())
    return found.hexdigest()


def _code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
