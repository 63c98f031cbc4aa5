"""Vocabularies: text to token ids, and back. Those that are learned are kept in the cache."""

import hashlib
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from typing_extensions import override

# a process that has encoded in its own threads and is then forked warns, and the workers of a loader are forked
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
import tokenizers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from pipetrain.data.files.cache import cached_array, cached_file, write_cached
from pipetrain.engine.errors import ConfigError, check_whole, one_line

Ids = NDArray[np.int32]
"""Token ids, (tokens,)."""
Lines = Callable[[], Iterable[str]]
"""Reads lines of text, from the first at each call."""

PADDING, BEGINNING, END, UNKNOWN = range(4)
SPECIAL_TOKENS = ("<pad>", "<s>", "</s>", "<unk>")
"""The tokens of these ids, in every vocabulary of sentences."""

_BYTES = 256
"""Tokens of byte pairs with which any text can be written."""
_END_OF_LINE, _UNKNOWN_WORD = "<eos>", "<unk>"
_LINES_AT_ONCE = 1000  # of running text
_SENTENCES_AT_ONCE = 10_000


class Vocabulary(ABC):
    """The tokens that a text is cut into; an id is a token's place among them.

    Attributes:
        size: number of tokens.
        sha256: hash that is equal for vocabularies that give the same ids.
    """

    size: int
    sha256: str

    @abstractmethod
    def encode(self, text: str) -> Ids:
        """The ids of a text.

        Raises:
            ConfigError: it has something that the vocabulary cannot express.
        """

    def encode_once(self, text: str) -> Ids:
        """As `encode`; vocabularies that take seconds for a book keep the ids in the cache."""
        return self.encode(text)

    @property
    def start(self) -> Ids:
        """The ids that a text without a prompt starts with: a new line, if the vocabulary has one."""
        return self.encode("\n")

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids."""


class CharacterVocabulary(Vocabulary):
    """A token for each of these characters, in the order of their ids."""

    def __init__(self, characters: str) -> None:
        self._characters = characters
        self.size, self.sha256 = len(characters), digest([characters])
        order = sorted(range(len(characters)), key=lambda i: characters[i])
        self._points = _code_points("".join(characters[i] for i in order))
        self._ids = np.array(order, dtype=np.int32)

    @classmethod
    def of(cls, text: str) -> "CharacterVocabulary":
        """The characters of a text, sorted."""
        return cls("".join(sorted(set(text))))

    @override
    def encode(self, text: str) -> Ids:
        points = _code_points(text)
        places = np.searchsorted(self._points, points).clip(max=self.size - 1)
        unknown = points[self._points[places] != points]
        if len(unknown):
            examples = ", ".join(repr(chr(point)) for point in np.unique(unknown)[:5])
            raise ConfigError(f"the text has characters outside its vocabulary of {self.size}: {examples}")
        ids: Ids = self._ids[places]
        return ids

    @property
    @override
    def start(self) -> Ids:
        return self.encode("\n" if "\n" in self._characters else self._characters[0])

    @override
    def decode(self, ids: Iterable[int]) -> str:
        return "".join(self._characters[i] for i in ids)


class WordVocabulary(Vocabulary):
    """A token for each of these words between blanks, in the order of their ids; empty lines are left out.

    `<unk>` is for all other words, and `<eos>` for the end of a line.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self._words = list(words)
        self._ids = {word: i for i, word in enumerate(self._words)}
        self.size, self.sha256 = len(self._words), digest(self._words)

    @classmethod
    def of(cls, text: str, size: int | None = None) -> "WordVocabulary":
        """The `size` most frequent words of a text (None: all), equally frequent ones in the order of the alphabet."""
        counts = Counter(text.split())
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        special = [_END_OF_LINE, _UNKNOWN_WORD]
        kept = [*special, *(word for word in ranked if word not in special)]
        return cls(kept[:size])

    @override
    def encode(self, text: str) -> Ids:
        unknown, end = self._ids[_UNKNOWN_WORD], self._ids[_END_OF_LINE]
        *lines, rest = text.split("\n")
        ids: list[int] = []
        for line in lines:
            if words := line.split():
                ids += [*(self._ids.get(word, unknown) for word in words), end]
        ids += [self._ids.get(word, unknown) for word in rest.split()]
        return np.array(ids, dtype=np.int32)

    @property
    @override
    def start(self) -> Ids:
        return np.array([self._ids[_END_OF_LINE]], dtype=np.int32)

    @override
    def decode(self, ids: Iterable[int]) -> str:
        text = " ".join("\n" if self._words[i] == _END_OF_LINE else self._words[i] for i in ids)
        return text.replace(" \n ", "\n").replace(" \n", "\n")


class TokenizerVocabulary(Vocabulary):
    """The tokens of a tokenizer of the `tokenizers` library."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.size = tokenizer.get_vocab_size()
        self.sha256 = hashlib.sha256(tokenizer.to_str().encode()).hexdigest()

    @classmethod
    def byte_pairs(cls, text: str, size: int | None) -> "TokenizerVocabulary":
        """Byte pairs of a running text, at most `size`, from the cache if they have been learned before.

        A text with fewer pairs that repeat has fewer tokens.

        Raises:
            ConfigError: `size` is too small for all bytes.
        """
        check_whole("dataset.vocabulary_size", size, least=_BYTES)
        name = f"byte-pairs-{size}-{digest([tokenizers.__version__, str(size), text])[:32]}.json"
        return cls(_cached(name, lambda: _byte_pairs(_parts(text), size or _BYTES)))

    @classmethod
    def read(cls, path: Path, setting: str) -> "TokenizerVocabulary":
        """The vocabulary of a tokenizer.json, as the `tokenizers` library and models of transformers save it.

        Raises:
            ConfigError: the file is missing or damaged.
        """
        if not path.is_file():
            raise ConfigError(f"{setting}: there is no file {path.absolute()}; name a tokenizer.json")
        try:
            return cls(Tokenizer.from_file(str(path)))
        except Exception as error:  # the library raises nothing narrower
            raise ConfigError(f"{setting}: {path} is not a tokenizer.json: {one_line(error)}") from error

    @override
    def encode(self, text: str) -> Ids:
        parts = self.tokenizer.encode_batch_fast(list(_parts(text)), add_special_tokens=False)
        return np.concatenate([np.empty(0, dtype=np.int32), *(np.array(part.ids, dtype=np.int32) for part in parts)])

    @override
    def encode_once(self, text: str) -> Ids:
        return cached_array(f"tokens-{digest([self.sha256, text])[:32]}.npy", lambda: self.encode(text))

    @override
    def decode(self, ids: Iterable[int]) -> str:
        return self.tokenizer.decode(list(ids), skip_special_tokens=False)


class SentenceVocabulary(TokenizerVocabulary):
    """The tokens of sentences; the `SPECIAL_TOKENS` are the first, and no text has them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        tokenizer.encode_special_tokens = True  # special tokens that stand in the text are text
        super().__init__(tokenizer)

    @classmethod
    def learned(cls, lines: Lines, kind: str, size: int | None, least: int = 1) -> "SentenceVocabulary":
        """The vocabulary of some sentences, from the cache if it has been learned before.

        Args:
            lines: the sentences.
            kind: `bpe` for subwords over bytes, which can write any text, or `words`, as white space separates them.
            size: tokens at most, the special ones included; None for all words.
            least: occurrences of a word at least; a rarer one is unknown.

        Raises:
            ConfigError: a setting is out of its range.
        """
        if kind not in ("bpe", "words"):
            raise ConfigError(f"dataset.tokens={kind}: must be one of bpe, words")
        if kind == "bpe":
            check_whole("dataset.vocabulary_size", size, least=len(SPECIAL_TOKENS) + _BYTES)
        elif size is not None:
            least_size, otherwise = len(SPECIAL_TOKENS) + 1, "or null for all words"
            check_whole("dataset.vocabulary_size", size, least_size, otherwise)

        texts = partial(_without_special, lines) if kind == "words" else lines

        def learn() -> Tokenizer:
            if kind == "words":
                return _words(texts(), size, least)
            return _byte_pairs(texts(), size or 0, SPECIAL_TOKENS, prefix_space=True)

        settings = f"{kind} {size} {least}"
        return cls(_cached(f"vocabulary-{digest(chain([settings], texts()))[:32]}.json", learn))

    def encode_lines(self, lines: Iterable[str]) -> Iterator[list[int]]:
        """The ids of each line, without special tokens."""
        waiting = iter(lines)
        while chunk := list(islice(waiting, _SENTENCES_AT_ONCE)):
            for encoding in self.tokenizer.encode_batch_fast(chunk, add_special_tokens=False):
                yield [max(each, UNKNOWN) for each in encoding.ids]  # a special token as a word of the text

    @override
    def decode(self, ids: Iterable[int]) -> str:
        """The text of these ids; special tokens are left out, but for unknown words."""
        return super().decode(i for i in ids if i == UNKNOWN or i >= len(SPECIAL_TOKENS)).strip()


def pad(sequences: Iterable[Tensor]) -> Tensor:
    """Sequences of ids, (positions,) each, as one tensor (n, positions)."""
    return pad_sequence(list(sequences), batch_first=True, padding_value=PADDING)


def _byte_pairs(
    texts: Iterable[str], size: int, special: Sequence[str] = (), *, prefix_space: bool = False
) -> Tokenizer:
    """Byte-level byte-pair encoding, which can write any text (Sennrich et al. 2016; Radford et al. 2019).

    The first tokens are `special`, which no text has. With `prefix_space` a text's first word is encoded as any other.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())  # a set: its order is another in each process
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=list(special), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _words(texts: Iterable[str], size: int | None, least: int) -> Tokenizer:
    """The words between white space, the frequent ones first, equally frequent ones in the order of the alphabet."""
    tokenizer = Tokenizer(models.WordLevel(unk_token=SPECIAL_TOKENS[UNKNOWN]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordLevelTrainer(
        vocab_size=size or 2**31, min_frequency=least, special_tokens=list(SPECIAL_TOKENS), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _without_special(lines: Lines) -> Iterator[str]:
    """The lines without words that are special tokens, of which text with marked unknown words has some."""
    for line in lines():
        if any(token in line for token in SPECIAL_TOKENS):
            line = " ".join(word for word in line.split() if word not in SPECIAL_TOKENS)
        yield line


def _cached(name: str, learn: Callable[[], Tokenizer]) -> Tokenizer:
    """The tokenizer in a file of the cache; it is learned if no usable one exists."""
    path = cached_file(name)
    try:
        return Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except Exception:  # the library raises no narrower one for a damaged file
        tokenizer = learn()
        content = tokenizer.to_str().encode()
        write_cached(path, lambda file: file.write(content))
        return tokenizer


def _parts(text: str) -> Iterator[str]:
    """Some lines at a time: a whole book would take a hundred times its size in memory."""
    lines = text.splitlines(keepends=True)
    for start in range(0, len(lines), _LINES_AT_ONCE):
        yield "".join(lines[start : start + _LINES_AT_ONCE])


def digest(parts: Iterable[str]) -> str:
    """A hash of strings in their order."""
    of_parts = hashlib.sha256()
    for part in parts:
        of_parts.update(f"{len(part)}:{part}".encode())
    return of_parts.hexdigest()


def _code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
